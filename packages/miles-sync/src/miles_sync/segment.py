"""A POSIX shared-memory segment: created and removed by the sender, mapped privately by receivers.

`multiprocessing.shared_memory` is not used: below Python 3.13 its resource tracker also adopts segments that were only
attached, and removes them under their owner. Its C module has what is needed; use `SharedMemory(track=False)` when 3.13
is the oldest Python.
"""

import _posixshmem  # type: ignore[import-not-found]
import fcntl
import mmap
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from miles_core.errors import WeightSyncError
from miles_sync.digest import digest
from miles_sync.orphans import SEGMENT_PREFIX, unlink


class Segment:
    """Shared memory owned by this object; `close` (or leaving the `with` block) removes its name and mapping.

    The open file is locked for as long as the owner lives, which tells `remove_orphans` that it is not one.
    """

    def __init__(self, nbytes: int) -> None:
        """Create a segment of at least `nbytes`; WeightSyncError when the machine has not that much shared memory."""
        self.name, self._fd = _create()
        try:
            size = max(nbytes, mmap.PAGESIZE)
            _reserve(self._fd, size)
            self._map = mmap.mmap(self._fd, size)
        except BaseException:
            self._remove()
            raise

    def write(self, tensor: Tensor, offset: int) -> str:
        """Copy the elements to `offset` in row-major order, whatever their strides and device; digest of the bytes."""
        nbytes = tensor.numel() * tensor.element_size()
        if nbytes:
            target = torch.frombuffer(self._map, dtype=tensor.dtype, count=tensor.numel(), offset=offset)
            try:
                target.view(tensor.shape).copy_(tensor)
            finally:
                del target  # nothing may point into the mapping when it is closed
        with memoryview(self._map) as whole, whole[offset : offset + nbytes] as part:
            return digest(part)

    def close(self) -> None:
        """Remove the name and the mapping; a receiver that is still reading keeps its own mapping."""
        if not self._map.closed:
            self._remove()
            self._map.close()

    def _remove(self) -> None:
        unlink(self.name)
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def attach(name: str, nbytes: int) -> Iterator[mmap.mmap]:
    """The first `nbytes` of someone else's segment, copy-on-write: nothing written here reaches the owner."""
    try:
        fd = _posixshmem.shm_open(f"/{name}", os.O_RDONLY, mode=0)
    except OSError as error:
        raise WeightSyncError(
            f"shared-memory segment {name} cannot be opened ({error.strerror}); are both ends on one machine?"
        ) from error
    try:
        found = os.fstat(fd).st_size
        if found < max(nbytes, 1):
            raise WeightSyncError(f"shared-memory segment {name}: expected {nbytes} bytes, found {found}.")
        mapping = mmap.mmap(fd, max(nbytes, 1), access=mmap.ACCESS_COPY)
    finally:
        os.close(fd)
    with mapping:
        yield mapping


def _create() -> tuple[str, int]:
    while True:
        name = f"{SEGMENT_PREFIX}{os.getpid():x}x{secrets.token_hex(4)}"
        try:
            fd = _posixshmem.shm_open(f"/{name}", os.O_CREAT | os.O_EXCL | os.O_RDWR, mode=0o600)
        except FileExistsError:
            continue
        if sys.platform != "linux":
            return name, fd
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # taken for an orphan between its creation and its lock
            os.close(fd)
            continue
        if os.fstat(fd).st_nlink:
            return name, fd
        os.close(fd)


def _reserve(fd: int, size: int) -> None:
    """Reserve the pages now: a full /dev/shm is an error here, and would be a fatal signal at the first write."""
    try:
        os.ftruncate(fd, size)
        if sys.platform == "linux":
            os.posix_fallocate(fd, 0, size)
    except OSError as error:
        raise WeightSyncError(
            f"cannot reserve {size} bytes of shared memory ({error.strerror}); enlarge /dev/shm or lower bucket_bytes."
        ) from error
