"""Named tensors as they leave the trainer: which are accepted, and their raw bytes."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from miles_core.errors import WeightSyncError

DTYPES: dict[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
"""Element types that travel, by the name a manifest gives them."""

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def dtype_name(dtype: torch.dtype, *, tensor: str) -> str:
    """The manifest's name of an element type; WeightSyncError naming the tensor when it has none."""
    name = _NAMES.get(dtype)
    if name is None:
        raise WeightSyncError(f"tensor {tensor}: expected an element type among {', '.join(DTYPES)}, found {dtype}.")
    return name


def raw_bytes(tensor: Tensor) -> memoryview:
    """The elements in row-major order as bytes: a view where the tensor is dense on the CPU, else of a copy."""
    dense = tensor.detach().to("cpu").contiguous()
    if dense.numel() == 0:
        return memoryview(b"")
    view: memoryview = dense.reshape(-1).view(torch.uint8).numpy().data
    return view


def checked_weights(weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """The pairs, detached, one at a time; WeightSyncError for a name seen twice or a tensor that cannot travel whole.

    Strides are free: transposed, sliced and tied tensors are taken as they are.
    """
    seen: set[str] = set()
    for name, tensor in weights:
        _check(name, tensor)
        if name in seen:
            raise WeightSyncError(f"tensor {name}: expected each name once, found it twice.")
        seen.add(name)
        yield name, tensor.detach()


def _check(name: object, tensor: Any) -> None:
    if not isinstance(name, str) or not name:
        raise WeightSyncError(f"expected a parameter name, found {name!r}.")
    if not isinstance(tensor, Tensor):
        raise WeightSyncError(f"tensor {name}: expected a torch tensor, found {type(tensor).__name__}.")
    if hasattr(tensor, "full_tensor"):
        raise WeightSyncError(f"tensor {name}: expected a full tensor, found a shard; gather it before the push.")
    if tensor.layout is not torch.strided or tensor.is_meta:
        raise WeightSyncError(
            f"tensor {name}: expected dense storage, found {tensor.layout} on {tensor.device}; materialise it first."
        )
    dtype_name(tensor.dtype, tensor=name)
