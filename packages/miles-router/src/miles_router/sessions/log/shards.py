"""The session log of a server: shards, each a folder of its own that one process owns at a time.

A session belongs to the shard that its id hashes to, for ever. Processes that share the work own different shards; when
one of them dies another takes its shards over, reads them, and goes on.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import orjson
from numpy.typing import NDArray

from miles_core.errors import ConfigError, SessionError
from miles_router.sessions.log.compaction import plan_compaction, rewrite
from miles_router.sessions.log.config import LogConfig
from miles_router.sessions.log.frames import session_hash
from miles_router.sessions.log.lease import Lease
from miles_router.sessions.log.records import Kind, Record
from miles_router.sessions.log.segments import Recovered, SegmentLog

logger = logging.getLogger(__name__)

T = TypeVar("T")

FORMAT = "miles.session-log/1"
ROTATE_BYTES = 1 << 16
"""A segment that is still written to is sealed for compaction from this size on, or from half of a small segment."""


class ShardedLog:
    """Appends records and hands out what was recorded. Methods run on one event loop, waits for the disk in threads."""

    def __init__(self, config: LogConfig, *, clock: Callable[[], float] = time.time) -> None:
        self._config = config
        self._clock = clock
        self.num_shards = num_shards(config)
        self._shards: dict[int, SegmentLog] = {}
        self._claimed: dict[int, Lease] = {}
        self._numbers: dict[str, int] = {}
        self._alive: dict[int, set[int]] = {}
        self._syncing = asyncio.Lock()
        self._synced: dict[int, int] = {}

    @property
    def held(self) -> Collection[int]:
        """The shards that this process owns."""
        return self._shards.keys()

    def shard_of(self, session_id: str) -> int:
        """The shard that the session belongs to."""
        return session_hash(session_id) % self.num_shards

    def claim(self) -> None:
        """Own every shard from now on, to be read later; SessionError 423 when another process keeps one.

        A process on its way out is waited for, for `owner_wait_s`; nothing else is done meanwhile.
        """
        give_up = time.monotonic() + self._config.owner_wait_s
        try:
            for shard in range(self.num_shards):
                self._claimed[shard] = self._lease(shard, give_up)
        except SessionError:
            self._unclaim()
            raise

    def _lease(self, shard: int, give_up: float) -> Lease:
        while True:
            try:
                return Lease(self._folder(shard))
            except SessionError:
                if time.monotonic() >= give_up:
                    raise
            time.sleep(0.05)

    def _folder(self, shard: int) -> Path:
        return self._config.folder / f"shard-{shard:03d}"

    def _unclaim(self) -> None:
        while self._claimed:
            self._claimed.popitem()[1].close()

    async def acquire(self, shard: int, restore: Callable[[Recovered], T]) -> T:
        """Own a shard and read it; SessionError 423 while another process owns it.

        restore: makes something of the records of sessions that have not ended, in a thread; the shard counts as held
        once that is done.
        """

        def opened() -> tuple[SegmentLog, list[Record], T]:
            lease = self._claimed.pop(shard, None)
            log = SegmentLog(self._folder(shard), segment_bytes=self._config.segment_bytes, lease=lease)
            try:
                found = log.recover()
                ended = {record.session_id for record in found.records if record.kind is Kind.ENDED}
                found.records = [record for record in found.records if record.session_id not in ended]
                return log, found.records, restore(found)
            except BaseException:
                log.close(sync=False)
                raise

        log, records, made = await asyncio.to_thread(opened)
        self._alive[shard] = {session_hash(record.session_id) for record in records}
        self._numbers.update((record.session_id, record.number + 1) for record in records)
        self._shards[shard] = log
        return made

    async def release(self, shard: int) -> None:
        """Give a shard up with everything in it on disk."""
        log = self._shards.pop(shard)
        self._alive.pop(shard)
        self._synced.pop(shard, None)
        for session_id in [name for name in self._numbers if self.shard_of(name) == shard]:
            del self._numbers[session_id]
        async with self._syncing:
            await asyncio.to_thread(log.close, sync=self._config.fsync != "none")

    def append(
        self,
        kind: Kind,
        session_id: str,
        fields: Mapping[str, Any] | None = None,
        arrays: Mapping[str, NDArray[Any]] | None = None,
    ) -> int:
        """Record what happened to a session, safe from here on against the end of this process; its position.

        SessionError 507 when it could not be written: then it did not happen.
        """
        shard = self.shard_of(session_id)
        if shard not in self._shards:
            raise SessionError(f"session {session_id!r} belongs to another process.", status=421)
        number = self._numbers.get(session_id, 0)
        record = Record(
            kind=kind,
            session_id=session_id,
            number=number,
            at=self._clock(),
            fields=fields or {},
            arrays=arrays or {},
        )
        try:
            position = self._shards[shard].append(record)
        except OSError as error:
            raise SessionError(f"the session log cannot be written ({error.strerror or error}).", status=507) from error
        if kind is Kind.ENDED:
            self._numbers.pop(session_id, None)
            self._alive[shard].discard(session_hash(session_id))
        else:
            self._numbers[session_id] = number + 1
            self._alive[shard].add(session_hash(session_id))
        return position

    async def durable(self, session_id: str, position: int) -> None:
        """Return when the record at this position may be told to the world: at once, or after a sync with `always`.

        Callers that wait at the same time share one sync.
        """
        if self._config.fsync != "always":
            return
        shard = self.shard_of(session_id)
        async with self._syncing:
            if shard in self._shards and self._synced.get(shard, 0) < position:
                await self._sync([shard])

    async def tend(self) -> None:
        """Sync and compact for ever; cancel to end."""
        compacted = self._clock()
        while True:
            await asyncio.sleep(self._config.fsync_interval_s)
            if self._config.fsync == "interval":
                await self._sync_all()
            if self._clock() - compacted >= self._config.compact_s:
                await self.compact()
                compacted = self._clock()

    async def _sync_all(self) -> None:
        async with self._syncing:
            try:
                await self._sync(list(self._shards))
            except SessionError:
                logger.exception("records may be lost when the machine fails.")

    async def compact(self) -> None:
        """Free what ended sessions hold, where it is worth the writing."""
        for shard, log in list(self._shards.items()):
            async with self._syncing:
                if self._shards.get(shard) is log:
                    await self._compact(shard, log)

    async def close(self) -> None:
        """Give every shard up."""
        self._unclaim()
        for shard in list(self._shards):
            await self.release(shard)

    async def _sync(self, shards: list[int]) -> None:
        positions = {shard: self._shards[shard].appended for shard in shards}
        pending = [self._shards[shard].take_unsynced() for shard in shards]

        def finish() -> None:
            for files in pending:
                files.finish(sync=True)

        if any(files.files or files.sealed for files in pending):
            try:
                await asyncio.to_thread(finish)
            except OSError as error:
                raise SessionError(
                    f"the session log cannot be synced ({error.strerror or error}).", status=507
                ) from error
        self._synced |= positions

    async def _compact(self, shard: int, log: SegmentLog) -> None:
        alive = self._alive[shard]
        last = log.segments[-1]
        dead = last.size - sum(size for session, size in last.held.items() if session in alive)
        if last.size >= min(ROTATE_BYTES, self._config.segment_bytes // 2) and dead >= last.size / 2:
            log.rotate()
        for segment, order in plan_compaction(log.segments[:-1], frozenset(alive)):
            try:
                left = await asyncio.to_thread(rewrite, order, sync=self._config.fsync != "none")
            except OSError as error:
                logger.warning("%s: cannot be compacted (%s).", segment.path, error)
                return
            place = log.segments.index(segment)
            log.segments[place : place + 1] = [left] if left.size else []


def num_shards(config: LogConfig, *, default: int = 1) -> int:
    """The number of shards of the folder, which its first server decides; ConfigError for another format or number."""
    manifest = config.folder / "log.json"
    config.folder.mkdir(parents=True, exist_ok=True)
    wanted = {"format": FORMAT, "shards": config.shards or default}
    try:
        # Written whole under a name of its own, then linked: of servers that start together one decides.
        draft = config.folder / f"log.json.{session_hash(str(time.time_ns()))}"
        draft.write_bytes(orjson.dumps(wanted))
        try:
            manifest.hardlink_to(draft)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
        found = orjson.loads(manifest.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"log folder {config.folder}: cannot be used ({error}).") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT or not isinstance(found.get("shards"), int):
        raise ConfigError(f"log folder {config.folder}: expected the format {FORMAT}, found {found!r}.")
    if config.shards not in (None, found["shards"]):
        raise ConfigError(
            f"log folder {config.folder}: it has {found['shards']} shards, {config.shards} were asked for; a session "
            "stays in the shard it began in, so use the same number or another folder."
        )
    return int(found["shards"])
