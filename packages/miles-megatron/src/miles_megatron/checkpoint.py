"""Checkpoint folders that are whole or absent. Imports no torch.

A checkpoint is written under a temporary name, gets a manifest with the size and digest of every file, is flushed to
disk, and is then renamed: a process killed at any moment leaves the checkpoints before it as they were.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import xxhash

from miles_core.errors import TrainError

FORMAT = 1
MANIFEST = "manifest.json"
PUBLISHED = re.compile(r"step-(\d+)")
TEMPORARY_PREFIX = ".unpublished-"
READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """Size and xxh3-128 of one file of a checkpoint."""

    nbytes: int
    digest: str


class CheckpointStore:
    """The checkpoints of one run: folders `step-N` in `root`, of which the newest `keep` stay.

    One process writes at a time; several may fill the folder that `writing` hands out, as long as all have finished
    before its block ends.
    """

    def __init__(self, root: Path, *, keep: int) -> None:
        if keep < 1:
            raise TrainError(f"expected to keep at least 1 checkpoint, found keep = {keep}.")
        self.root, self.keep = Path(root), keep

    def folder(self, step: int) -> Path:
        """Where the checkpoint of a step lies once it is published."""
        return self.root / f"step-{step}"

    def steps(self) -> list[int]:
        """Steps of the published checkpoints, ascending."""
        if not self.root.is_dir():
            return []
        matches = (PUBLISHED.fullmatch(path.name) for path in self.root.iterdir() if path.is_dir())
        return sorted(int(match[1]) for match in matches if match)

    def latest(self) -> Path | None:
        """The newest checkpoint after a check of every file, or None. TrainError when it is damaged."""
        steps = self.steps()
        if not steps:
            return None
        folder = self.folder(steps[-1])
        verify(folder)
        return folder

    @contextmanager
    def writing(self, step: int) -> Iterator[Path]:
        """An empty folder to fill; when the block ends without an error it becomes `folder(step)`, else it is removed.

        Publishing removes the oldest checkpoints beyond `keep`, and what killed writers left behind.
        """
        target = self.folder(step)
        if target.exists():
            raise TrainError(f"expected no checkpoint of step {step} yet, found {target}; remove it to write it again.")
        self.root.mkdir(parents=True, exist_ok=True)
        self._remove_leftovers()
        temporary = self.root / f"{TEMPORARY_PREFIX}step-{step}"
        temporary.mkdir()
        try:
            yield temporary
            _seal(temporary, step)
            os.rename(temporary, target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        _flush(self.root)
        self._remove_old()

    def _remove_leftovers(self) -> None:
        for path in self.root.glob(f"{TEMPORARY_PREFIX}*"):
            shutil.rmtree(path)

    def _remove_old(self) -> None:
        """Renamed before it is removed, so that a folder named `step-N` is always whole."""
        for step in self.steps()[: -self.keep]:
            doomed = self.root / f"{TEMPORARY_PREFIX}old-{step}"
            os.rename(self.folder(step), doomed)
            shutil.rmtree(doomed)


def verify(folder: Path) -> dict[str, FileEntry]:
    """The files of a published checkpoint, each compared with its size and digest; TrainError where one differs."""
    entries = _read_manifest(folder)
    for name, entry in entries.items():
        path = folder / name
        if not path.is_file():
            raise TrainError(f"checkpoint {folder}: {name} is missing; remove the folder to resume from an older one.")
        found = _entry(path)
        if found != entry:
            raise TrainError(
                f"checkpoint {folder}: expected {name} with {entry.nbytes} bytes and digest {entry.digest}, found "
                f"{found.nbytes} bytes and {found.digest}; remove the folder to resume from an older one."
            )
    return entries


def _read_manifest(folder: Path) -> dict[str, FileEntry]:
    path = folder / MANIFEST
    if not path.is_file():
        raise TrainError(f"checkpoint {folder}: expected {MANIFEST}, found none; the folder was never finished.")
    try:
        manifest = json.loads(path.read_text())
        if manifest["format"] != FORMAT:
            raise TrainError(f"checkpoint {folder}: expected manifest format {FORMAT}, found {manifest['format']!r}.")
        return {name: FileEntry(**entry) for name, entry in manifest["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TrainError(
            f"checkpoint {folder}: expected a manifest of files, found something else ({error})."
        ) from error


def _seal(folder: Path, step: int) -> None:
    """Write the manifest and flush every file and folder to disk."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {path.relative_to(folder).as_posix(): _entry(path) for path in paths}
    manifest = {
        "format": FORMAT,
        "step": step,
        "files": {name: {"nbytes": entry.nbytes, "digest": entry.digest} for name, entry in files.items()},
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))
    for path in (*paths, folder / MANIFEST, *(p for p in folder.rglob("*") if p.is_dir()), folder):
        _flush(path)


def _entry(path: Path) -> FileEntry:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(READ_BYTES):
            digest.update(chunk)
    return FileEntry(nbytes=path.stat().st_size, digest=digest.hexdigest())


def _flush(path: Path) -> None:
    """fsync of a file or folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
