"""The training state of one job as files: one safetensors file per rank and an index."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from miles_core.errors import TrainError

FORMAT = 1
INDEX = "trainer.json"


def shard_name(rank: int, world_size: int) -> str:
    """File name of a rank's shard."""
    return f"trainer-{rank:05d}-of-{world_size:05d}.safetensors"


def write_shard(folder: Path, tensors: Mapping[str, Tensor], *, rank: int, world_size: int) -> None:
    """Write a rank's tensors; the file appears whole or not at all."""
    target = folder / shard_name(rank, world_size)
    temporary = target.with_suffix(".partial")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, str(temporary))
    os.replace(temporary, target)


def write_index(folder: Path, index: Mapping[str, Any]) -> None:
    """Write the index, last of all files: its presence says that rank 0 finished."""
    temporary = folder / f"{INDEX}.partial"
    temporary.write_text(json.dumps({"format": FORMAT, **index}, indent=1, sort_keys=True))
    os.replace(temporary, folder / INDEX)


def read_index(folder: Path) -> dict[str, Any]:
    """The index of a complete folder; TrainError when it is missing, of another format, or a shard is missing."""
    path = folder / INDEX
    if not path.is_file():
        raise TrainError(f"expected a training state with {INDEX} in {folder}, found none; it is not a checkpoint.")
    try:
        index: dict[str, Any] = json.loads(path.read_text())
    except ValueError as error:
        raise TrainError(f"expected JSON in {path}, found something else ({error}).") from error
    if index.get("format") != FORMAT:
        raise TrainError(f"expected format {FORMAT} in {path}, found {index.get('format')!r}.")
    names = [shard_name(rank, index["world_size"]) for rank in range(index["world_size"])]
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise TrainError(f"expected {len(names)} shards in {folder}, {', '.join(missing)} missing.")
    return index


class ShardReader:
    """Tensors of all ranks of a saved job, cut for a rank of the job that loads, which may have another size."""

    def __init__(self, folder: Path, *, saved_ranks: int, rank: int, world_size: int) -> None:
        self.same_ranks = saved_ranks == world_size
        own = [rank] if self.same_ranks else range(saved_ranks)
        paths = [folder / shard_name(number, saved_ranks) for number in own]
        try:
            self._files = [safe_open(str(path), framework="pt") for path in paths]
        except (SafetensorError, OSError) as error:
            raise TrainError(f"a shard in {folder} cannot be read ({error}).") from error
        self._rank, self._world_size = rank, world_size

    def tensor(self, name: str) -> Tensor:
        """This rank's part of a tensor: FSDP deals rows in `torch.chunk` fashion along the first dimension."""
        parts = [self._get(file, name) for file in self._files]
        if self.same_ranks:
            return parts[0]
        whole = torch.cat(parts)
        rows = -(-whole.shape[0] // self._world_size)
        return whole[rows * self._rank : rows * (self._rank + 1)]

    def first(self, name: str) -> Tensor:
        """A tensor that is whole in every shard, from the first one at hand."""
        return self._get(self._files[0], name)

    def _get(self, file: Any, name: str) -> Tensor:
        try:
            tensor: Tensor = file.get_tensor(name)
        except SafetensorError as error:
            raise TrainError(f"expected tensor {name} in the saved shards, found none; is it another model?") from error
        return tensor
