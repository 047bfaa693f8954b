"""Reads named tensors bucket by bucket, so that a model never has to be held twice."""

from collections.abc import Iterable, Iterator, Mapping

from torch import Tensor

from miles_sync.plan import Bucket, Slot, plan_buckets
from miles_sync.weights import checked_weights, dtype_name


def read_buckets(
    weights: Iterable[tuple[str, Tensor]], *, bucket_bytes: int
) -> Iterator[tuple[Bucket, Mapping[str, Tensor]]]:
    """Each planned bucket with its tensors by name; at most one bucket and the next unit's tensors are held."""
    held: dict[str, Tensor] = {}

    def slots() -> Iterator[Slot]:
        for name, tensor in checked_weights(weights):
            held[name] = tensor
            yield slot_of(name, tensor)

    for bucket in plan_buckets(slots(), bucket_bytes=bucket_bytes):
        yield bucket, {slot.name: held.pop(slot.name) for slot in bucket.slots}


def slot_of(name: str, tensor: Tensor) -> Slot:
    """The tensor's name, element type, shape and size."""
    return Slot(
        name=name,
        dtype=dtype_name(tensor.dtype, tensor=name),
        shape=tuple(tensor.shape),
        nbytes=tensor.numel() * tensor.element_size(),
    )
