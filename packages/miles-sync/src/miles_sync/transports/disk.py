"""Weights as a Hugging Face folder of safetensors: for engines that share a file system, and for SGLang."""

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from miles_core.errors import WeightSyncError
from miles_sync.buckets import read_buckets
from miles_sync.config import DiskConfig
from miles_sync.digest import tensor_digest
from miles_sync.parcel import Parcel

DIGESTS_FILE = "miles_digests.json"
"""Beside the safetensors files: `{"version": n, "digests": {name: xxh3-128}}`."""

_FOLDER = re.compile(r"^version-(\d{8,})$")
_UNFINISHED = ".unfinished"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFolder:
    """A complete version on disk. nbytes: of the tensors; digests: of each tensor, by name."""

    path: Path
    nbytes: int
    digests: dict[str, str]


class DiskTransport:
    """Writes a version, publishes it, offers it as one parcel; older versions go once engines have moved on.

    Extra memory: the tensors of one file and what safetensors serialises of them.
    """

    def __init__(self, config: DiskConfig) -> None:
        self._config = config

    def parcels(self, weights: Iterable[tuple[str, Tensor]], version: int) -> Iterator[Parcel]:
        """One parcel: the published folder."""
        published = publish_folder(
            weights,
            self._config.folder,
            version=version,
            bucket_bytes=self._config.bucket_bytes,
            files_from=self._config.files_from,
        )
        yield Parcel(
            route="/update_weights_from_disk",
            body={"model_path": str(published.path), "weight_version": str(version)},
            digests=published.digests,
            nbytes=published.nbytes,
            echoes=False,
        )

    def settle(self, version: int) -> None:
        """Remove all but the newest versions."""
        prune_versions(self._config.folder, keep_last=self._config.keep_last)


def publish_folder(
    weights: Iterable[tuple[str, Tensor]],
    root: Path,
    *,
    version: int,
    bucket_bytes: int = 1 << 30,
    files_from: Path | None = None,
) -> PublishedFolder:
    """Write `root/version-N` with `model.safetensors`, or several files and their index, as transformers loads it.

    The folder appears complete or not at all: it is written under another name, synced and renamed. A version that
    is there already is replaced. A process killed meanwhile leaves only an unfinished folder, which the next call
    for the root removes.
    """
    final = root.resolve() / f"version-{version:08d}"
    work = final.with_name(f"{final.name}{_UNFINISHED}")
    try:
        _remove_unfinished(final.parent)
        work.mkdir(parents=True)
        if files_from is not None:
            _copy_files(files_from, work)
        published = _write(weights, work, final=final, version=version, bucket_bytes=bucket_bytes)
        if final.exists():
            final.rename(final.with_name(f"{final.name}.replaced{_UNFINISHED}"))
        work.rename(final)
        _sync(final.parent)
        _remove_unfinished(final.parent)
    except (OSError, SafetensorError) as error:
        raise WeightSyncError(f"weights of version {version} cannot be written to {root}: {error}.") from error
    return published


def prune_versions(root: Path, *, keep_last: int) -> tuple[Path, ...]:
    """Remove all but the `keep_last` newest version folders of `root` and return them; nothing else is touched."""
    found = sorted((int(match[1]), path) for path in root.iterdir() if (match := _FOLDER.match(path.name)))
    surplus = tuple(path for _, path in found[: max(len(found) - keep_last, 0)])
    for path in surplus:
        shutil.rmtree(path)
    return surplus


def _write(
    weights: Iterable[tuple[str, Tensor]], work: Path, *, final: Path, version: int, bucket_bytes: int
) -> PublishedFolder:
    parts: list[list[str]] = []
    digests: dict[str, str] = {}
    nbytes = 0
    for bucket, tensors in read_buckets(weights, bucket_bytes=bucket_bytes):
        path = work / f"part-{len(parts)}"
        save_file(_apart(tensors), path, {"format": "pt"})
        _sync(path)
        digests |= {name: tensor_digest(tensor) for name, tensor in tensors.items()}
        nbytes += sum(slot.nbytes for slot in bucket.slots)
        parts.append(list(tensors))
        del tensors
    _name_parts(work, parts, nbytes)
    _write_json(work / DIGESTS_FILE, {"version": version, "digests": digests})
    _sync(work)
    return PublishedFolder(path=final, nbytes=nbytes, digests=digests)


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as safetensors takes them: dense, on the CPU, no two in one storage; copied only where needed."""
    apart: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, tensor in tensors.items():
        dense = tensor.to("cpu").contiguous()
        storage = dense.untyped_storage()
        if storage.data_ptr() in taken or storage.nbytes() != dense.numel() * dense.element_size():
            dense = dense.clone()
        taken.add(dense.untyped_storage().data_ptr())
        apart[name] = dense
    return apart


def _name_parts(work: Path, parts: list[list[str]], nbytes: int) -> None:
    """Names that transformers knows: one file, or `model-00001-of-00003.safetensors` and the index."""
    if len(parts) == 1:
        (work / "part-0").rename(work / "model.safetensors")
        return
    where: dict[str, str] = {}
    for number, names in enumerate(parts):
        file = f"model-{number + 1:05d}-of-{len(parts):05d}.safetensors"
        (work / f"part-{number}").rename(work / file)
        where |= dict.fromkeys(names, file)
    _write_json(work / "model.safetensors.index.json", {"metadata": {"total_size": nbytes}, "weight_map": where})


def _copy_files(source: Path, target: Path) -> None:
    for path in sorted(source.iterdir()):
        weights = path.name.endswith((".safetensors", ".safetensors.index.json", ".bin", ".gguf", ".pt"))
        if path.is_file() and not weights and path.name != DIGESTS_FILE:
            shutil.copyfile(path, target / path.name)
            _sync(target / path.name)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1))
    _sync(path)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _remove_unfinished(root: Path) -> None:
    for path in root.glob(f"version-*{_UNFINISHED}"):
        shutil.rmtree(path)
