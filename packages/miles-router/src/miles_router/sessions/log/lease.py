"""The lease of a folder: one process at a time writes there, for as long as it lives.

It is an exclusive `flock` on the file `owner`. The kernel gives it up with the process, however that ends, and never
earlier: a process that hangs still owns its folder, so there is no moment at which two of them write.
"""

import fcntl
import os
from pathlib import Path

import orjson

from miles_core.errors import SessionError


class Lease:
    """A folder that this process owns. SessionError 423 tells who owns it when another process does."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = os.open(folder / "owner", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(self._file, 200, 0).decode(errors="replace").strip()
            os.close(self._file)
            raise SessionError(
                f"expected the session log {folder.name} to be free, found its owner alive: {owner or 'unknown'}.",
                status=423,
            ) from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, orjson.dumps({"pid": os.getpid()}), 0)

    def close(self) -> None:
        """Give the folder up."""
        os.close(self._file)
