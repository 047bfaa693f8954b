"""Reads a folder of safetensors."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from miles_core.errors import WeightSyncError
from miles_sync.digest import tensor_digest
from miles_sync.transports.disk import DIGESTS_FILE

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


def read_folder(path: Path | str) -> Iterator[tuple[str, Tensor]]:
    """Each tensor of a Hugging Face folder (one file, or several with an index), on the CPU, one file open at a time.

    Where the folder has digests (every folder that `DiskTransport` publishes), each tensor is checked against its
    own, and a missing or surplus tensor is an error. WeightSyncError names the file or tensor.
    """
    folder = Path(path)
    digests = _digests(folder)
    seen: set[str] = set()
    for file, expected in _files(folder).items():
        for name, tensor in _read(folder / file, expected):
            if name in seen:
                raise WeightSyncError(f"tensor {name}: expected once in {folder}, found in {file} again.")
            _check(name, tensor, digests, folder)
            seen.add(name)
            yield name, tensor
    missing = sorted(set(digests or ()) - seen)
    if missing:
        raise WeightSyncError(f"tensor {missing[0]}: missing in {folder}, with {len(missing) - 1} more.")


def _files(folder: Path) -> dict[str, frozenset[str] | None]:
    """File name -> the tensors it must hold, None where no index says so."""
    if (folder / _INDEX).is_file():
        where = _json(folder / _INDEX).get("weight_map")
        if not isinstance(where, Mapping) or not where:
            raise WeightSyncError(f"{folder / _INDEX}: expected a weight_map of names to files.")
        files: dict[str, set[str]] = {}
        for name, file in where.items():
            if not isinstance(file, str) or Path(file).name != file:
                raise WeightSyncError(f"{folder / _INDEX}: expected a file beside it for {name}, found {file!r}.")
            files.setdefault(file, set()).add(name)
        return {file: frozenset(names) for file, names in files.items()}
    if (folder / _SINGLE).is_file():
        return {_SINGLE: None}
    raise WeightSyncError(f"expected {_SINGLE} or {_INDEX} in {folder}, found neither.")


def _read(path: Path, expected: frozenset[str] | None) -> Iterator[tuple[str, Tensor]]:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            names = list(file.keys())
            absent = sorted((expected or frozenset()) - set(names))
            if absent:
                raise WeightSyncError(f"tensor {absent[0]}: the index places it in {path.name}, which lacks it.")
            for name in names:
                yield name, file.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise WeightSyncError(f"{path}: expected a complete safetensors file: {error}.") from error


def _digests(folder: Path) -> Mapping[str, Any] | None:
    path = folder / DIGESTS_FILE
    if not path.is_file():
        return None
    digests = _json(path).get("digests")
    if not isinstance(digests, Mapping):
        raise WeightSyncError(f"{path}: expected digests by tensor name.")
    return digests


def _check(name: str, tensor: Tensor, digests: Mapping[str, Any] | None, folder: Path) -> None:
    if digests is None:
        return
    found = tensor_digest(tensor)
    if digests.get(name) != found:
        raise WeightSyncError(f"tensor {name}: digest {found} in {folder}, expected {digests.get(name)}.")


def _json(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise WeightSyncError(f"{path}: expected a JSON object: {error}.") from error
    if not isinstance(value, Mapping):
        raise WeightSyncError(f"{path}: expected a JSON object, found {type(value).__name__}.")
    return value
