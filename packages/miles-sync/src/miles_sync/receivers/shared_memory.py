"""Reads the tensors of a shared-memory manifest."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from miles_core.errors import WeightSyncError
from miles_sync.digest import digest
from miles_sync.manifest import Manifest, TensorEntry
from miles_sync.segment import attach
from miles_sync.weights import DTYPES, raw_bytes


def open_manifest(manifest: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Each tensor of the manifest as a copy of its own on the CPU, its digest checked on the copy.

    Sizes, bounds, element types and names are checked before the first tensor is yielded. WeightSyncError names the
    tensor. The segment is attached only while the iterator runs; what was yielded stays valid after it.
    """
    parsed = Manifest.parse(manifest)
    with attach(parsed.segment, parsed.nbytes) as mapping, memoryview(mapping) as segment:
        for entry in parsed.tensors:
            yield entry.name, _copy(segment, entry)


def _copy(segment: memoryview, entry: TensorEntry) -> Tensor:
    flat = torch.empty(entry.nbytes, dtype=torch.uint8)
    target = raw_bytes(flat)
    if entry.nbytes:
        target[:] = segment[entry.offset : entry.offset + entry.nbytes]
    found = digest(target)
    if found != entry.digest:
        raise WeightSyncError(
            f"tensor {entry.name}: its bytes in segment have digest {found}, the manifest says {entry.digest}."
        )
    return flat.view(DTYPES[entry.dtype]).reshape(entry.shape)
