"""One log folder: numbered segment files, of which the last is appended to."""

import logging
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from miles_core.errors import RecordError
from miles_router.sessions.log.frames import DAMAGED_PAYLOAD, Damage, frame, scan, session_hash
from miles_router.sessions.log.lease import Lease
from miles_router.sessions.log.records import Kind, Record, decode

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Segment:
    """A segment file. held: bytes of each session in it, by its hash. ends: those of them that tell of its end.

    damaged: bytes that hold no whole frame.
    """

    number: int
    path: Path
    size: int = 0
    held: Counter[int] = field(default_factory=Counter)
    ends: Counter[int] = field(default_factory=Counter)
    damaged: int = 0

    def count(self, session: int, kind: Kind, nbytes: int) -> None:
        """Note a record that is in the file."""
        self.held[session] += nbytes
        if kind is Kind.ENDED:
            self.ends[session] += nbytes


@dataclass(slots=True)
class Recovered:
    """What a folder held: the records that are whole, in order, and the damage. torn: bytes cut off at the end."""

    records: list[Record] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    torn: int = 0


class SegmentLog:
    """Appends frames to a folder that this process owns until `close`. Not for several threads at once.

    segment_bytes: a segment that reached this size is followed by a new one. lease: of the folder, if it is held.
    """

    def __init__(self, folder: Path, *, segment_bytes: int, lease: Lease | None = None) -> None:
        self._lease = lease or Lease(folder)
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._file = -1
        self._unsynced: set[int] = set()
        self._sealed_files: list[int] = []
        self.appended = 0
        """Bytes appended by this process."""
        self.segments: list[Segment] = [
            Segment(int(path.stem), path) for path in sorted(folder.glob("*.log")) if path.stem.isdecimal()
        ]

    def recover(self) -> Recovered:
        """Read everything, cut off what a crash left half written, and be ready to append. Once, before all else."""
        found = Recovered()
        for leftover in self._folder.glob("*.tmp"):
            leftover.unlink()
        for segment in self.segments:
            self._read(segment, found, last=segment is self.segments[-1])
        if self.segments and self.segments[-1].size < self._segment_bytes:
            self._file = os.open(self.segments[-1].path, os.O_WRONLY | os.O_APPEND)
        else:
            self._begin_segment()
        return found

    def append(self, record: Record) -> int:
        """Write a record into the hands of the operating system; the position after it.

        OSError when that fails: then nothing of the record remains.
        """
        data = frame(record.session_id, record.encode())
        segment = self.segments[-1]
        if segment.size and segment.size + len(data) > self._segment_bytes:
            segment = self._begin_segment()
        try:
            written = os.write(self._file, data)
            while written < len(data):
                written += os.write(self._file, data[written:])
        except OSError:
            os.ftruncate(self._file, segment.size)
            raise
        self._unsynced.add(self._file)
        segment.size += len(data)
        segment.count(session_hash(record.session_id), record.kind, len(data))
        self.appended += len(data)
        return self.appended

    def rotate(self) -> None:
        """Begin a new segment, unless the last is empty."""
        if self.segments[-1].size:
            self._begin_segment()

    def take_unsynced(self) -> "Unsynced":
        """The files to be synced so that all that was appended so far survives a crash of the machine."""
        sealed, self._sealed_files = self._sealed_files, []
        files, self._unsynced = self._unsynced, set()
        return Unsynced(frozenset(files), tuple(sealed))

    def close(self, *, sync: bool) -> None:
        """Give the folder up, everything written synced when asked to."""
        if self._file >= 0:
            self._sealed_files.append(self._file)
            self._file = -1
        self.take_unsynced().finish(sync=sync)
        self._lease.close()

    def _begin_segment(self) -> Segment:
        number = self.segments[-1].number + 1 if self.segments else 1
        segment = Segment(number, self._folder / f"{number:08d}.log")
        file = os.open(segment.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
        if self._file >= 0:
            self._sealed_files.append(self._file)
        self._file = file
        self.segments.append(segment)
        return segment

    def _read(self, segment: Segment, found: Recovered, *, last: bool) -> None:
        data = segment.path.read_bytes()
        for piece in scan(data):
            if isinstance(piece, Damage):
                if piece.tail and last:
                    os.truncate(segment.path, piece.start)
                    found.torn += piece.end - piece.start
                    logger.warning("%s: cut %d bytes of %s.", segment.path, piece.end - piece.start, piece.reason)
                    data = data[: piece.start]
                    if piece.reason == DAMAGED_PAYLOAD:  # it was written whole, so its session lost something
                        found.damage.append(piece)
                else:
                    self._damaged(segment, piece, found)
                continue
            try:
                found.records.append(decode(piece.payload))
                segment.count(piece.session, found.records[-1].kind, piece.end - piece.start)
            except RecordError as error:
                self._damaged(segment, Damage(piece.start, piece.end, piece.session, False, str(error)), found)
        segment.size = len(data)

    def _damaged(self, segment: Segment, damage: Damage, found: Recovered) -> None:
        logger.error("%s: skipped %s at bytes %d to %d.", segment.path, damage.reason, damage.start, damage.end)
        segment.damaged += damage.end - damage.start
        found.damage.append(damage)


@dataclass(frozen=True, slots=True)
class Unsynced:
    """Files with writes that may not be on disk yet; those that are sealed are closed at the end."""

    files: frozenset[int]
    sealed: tuple[int, ...]

    def finish(self, *, sync: bool) -> None:
        """Sync and close; may take as long as the disk needs, in any thread."""
        for file in self.files if sync else ():
            os.fsync(file)
        for file in self.sealed:
            os.close(file)
