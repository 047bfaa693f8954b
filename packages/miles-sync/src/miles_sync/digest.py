"""The digest that both ends of a transfer compare: xxh3-128 of a tensor's raw bytes."""

import xxhash
from torch import Tensor

from miles_sync.weights import raw_bytes


def digest(data: bytes | bytearray | memoryview) -> str:
    """32 hexadecimal digits: xxh3-128 of the bytes. It tells accidents apart, not attackers."""
    return xxhash.xxh3_128_hexdigest(data)


def tensor_digest(tensor: Tensor) -> str:
    """Digest of the tensor's elements in row-major order, whatever its strides and device.

    An engine answers this of what it holds, so that the sender sees a transfer that only seemed to arrive.
    """
    return digest(raw_bytes(tensor))
