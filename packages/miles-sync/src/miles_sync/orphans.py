"""Shared memory that a killed sender left behind. Importing this costs no torch."""

import _posixshmem  # type: ignore[import-not-found]
import fcntl
import os
from contextlib import suppress
from pathlib import Path

SEGMENT_PREFIX = "miles-w-"
"""Every segment's name starts with it, so that a manifest cannot name foreign shared memory."""

_FOLDER = Path("/dev/shm")  # where Linux shows POSIX shared memory; nothing is created through it


def remove_orphans() -> tuple[str, ...]:
    """Remove segments whose owner died before it could, and return their names; on Linux only, elsewhere none."""
    if not _FOLDER.is_dir():
        return ()
    removed = []
    for path in sorted(_FOLDER.glob(f"{SEGMENT_PREFIX}*")):
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # gone meanwhile, or another user's
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            unlink(path.name)
            removed.append(path.name)
        except BlockingIOError:
            pass  # its owner lives
        finally:
            os.close(fd)
    return tuple(removed)


def unlink(name: str) -> None:
    """Remove a segment's name, if it is there; whoever has it mapped keeps its memory."""
    with suppress(FileNotFoundError):
        _posixshmem.shm_unlink(f"/{name}")
