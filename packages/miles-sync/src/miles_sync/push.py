"""The one order of a weight push: pause, begin, stage, verify, commit, announce, continue."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor

from miles_core.errors import WeightSyncError
from miles_sync.deadlines import Deadlines
from miles_sync.feed import Feed
from miles_sync.fleet import Fleet
from miles_sync.parcel import Parcel
from miles_sync.receivers.endpoint import EngineConnection, EngineEndpoint, open_client
from miles_sync.transports import TransportConfig, open_transport

PHASES = ("pause", "begin", "gather", "stage", "commit", "announce", "continue")


@dataclass(frozen=True, slots=True, kw_only=True)
class PushReport:
    """What became of a push.

    acknowledged: URLs of the engines that serve `version`. failed: URL -> reason of those that do not; they keep their
    old version and must be kept from traffic until a later push reaches them. nbytes: of the tensors sent to each
    engine, 0 when all had them. seconds: wall time by phase (`PHASES`).
    """

    version: int
    acknowledged: tuple[str, ...]
    failed: Mapping[str, str]
    nbytes: int
    seconds: Mapping[str, float] = field(default_factory=dict)


class NoEngineError(WeightSyncError):
    """No engine took a push; `report` says why, engine by engine."""

    def __init__(self, report: PushReport) -> None:
        reasons = "; ".join(report.failed.values()) or "there are no engines"
        super().__init__(f"no engine took weight version {report.version}: {reasons}")
        self.report = report


class WeightPusher:
    """Takes weights to engines. It holds no connection, thread or memory between pushes."""

    def __init__(self, config: TransportConfig, engines: Sequence[EngineEndpoint]) -> None:
        self._config = config
        self._deadlines: Deadlines = config.deadlines
        self._transport = open_transport(config)
        self._verified: dict[str, int] = {}
        self._version: int | None = None
        self._running = False
        self.set_engines(engines)

    @property
    def version(self) -> int | None:
        """The newest version that an engine acknowledged; None before the first."""
        return self._version

    def set_engines(self, engines: Sequence[EngineEndpoint]) -> None:
        """Replace the engines that the next push goes to, for example after one was restarted elsewhere."""
        urls = [engine.url.rstrip("/") for engine in engines]
        if len(set(urls)) != len(urls):
            raise WeightSyncError(f"expected each engine once, found {urls}.")
        self._engines = tuple(engines)

    async def push(
        self,
        weights: Iterable[tuple[str, Tensor]],
        version: int,
        *,
        announce: Callable[[PushReport], Awaitable[None]] | None = None,
    ) -> PushReport:
        """Put `weights` on every engine as `version`, all tensors or none on each.

        An engine that fails anywhere keeps its version, is named in the report and is tried again by the next push;
        NoEngineError is raised when none is left. `announce` is awaited between commit and continue: there the router
        learns the version and whom to quarantine. `weights` is read once, to its end, whatever engines do (other
        trainer ranks take part in reading), unless it raises or misses its deadline: then no engine changes.
        Versions grow; pushing the current one again reaches engines that lack it and skips those that hold it.
        """
        self._check(version)
        self._running = True
        try:
            async with open_client(self._engines) as client:
                fleet = Fleet([EngineConnection(engine, client) for engine in self._engines])
                return await self._push(fleet, weights, version, announce=announce)
        finally:
            self._running = False

    async def _push(
        self,
        fleet: Fleet,
        weights: Iterable[tuple[str, Tensor]],
        version: int,
        *,
        announce: Callable[[PushReport], Awaitable[None]] | None,
    ) -> PushReport:
        limits, clock = self._deadlines, _Clock()
        feed = Feed(self._transport, weights, version=version, timeout_s=limits.gather_s)
        try:
            await self._set_holders_aside(fleet, version)
            with clock("pause"):
                await fleet.each(lambda engine: engine.pause(self._config.pause, timeout_s=limits.pause_s))
            with clock("begin"):
                await fleet.each(lambda engine: engine.begin(timeout_s=limits.begin_s))
            nbytes = await self._stage(fleet, feed, version, clock=clock)
            with clock("commit"):
                await fleet.each(lambda engine: self._commit(engine, version))
                await fleet.restore(timeout_s=limits.recover_s)
            report = await self._settle(fleet, version, nbytes=nbytes, clock=clock)
            with clock("announce"):
                if announce is not None:
                    await announce(report)
            with clock("continue"):
                await fleet.resume(timeout_s=limits.resume_s, recover_s=limits.recover_s)
        except BaseException:
            await fleet.abandon(timeout_s=limits.recover_s)
            raise
        finally:
            await feed.close()
        return _report(fleet, version, nbytes=nbytes, clock=clock)

    def _check(self, version: int) -> None:
        if self._running:
            raise WeightSyncError(f"weight version {version}: another push is running; await it first.")
        if version < 0 or (self._version is not None and version < self._version):
            raise WeightSyncError(f"expected a weight version of at least {self._version or 0}, found {version}.")

    async def _set_holders_aside(self, fleet: Fleet, version: int) -> None:
        """Spare engines that hold the version: this pusher staged it there, and they say that they serve it.

        Their word alone is not enough: a server of an earlier run may report the same number for other weights.
        """

        async def look(engine: EngineConnection) -> bool:
            try:
                return await engine.weight_version(timeout_s=self._deadlines.recover_s) == str(version)
            except WeightSyncError:
                return False

        candidates = [engine for engine in fleet.live if self._verified.get(engine.url) == version]
        answers = await asyncio.gather(*(look(engine) for engine in candidates))
        fleet.set_aside([engine for engine, holds in zip(candidates, answers, strict=True) if holds])

    async def _stage(self, fleet: Fleet, feed: Feed, version: int, *, clock: "_Clock") -> int:
        """Send every parcel to every live engine; bytes sent to each. Reads the weights to their end in any case."""
        nbytes = 0
        while fleet.live:
            with clock("gather"):
                parcel = await feed.next()
            if parcel is None:
                break
            if not parcel.digests:
                raise WeightSyncError(f"weight version {version}: the trainer yielded no tensors.")
            with clock("stage"):
                await fleet.each(lambda engine, parcel=parcel: self._deliver(engine, parcel))  # type: ignore[misc]
            nbytes += parcel.nbytes
        if fleet.live and not nbytes:
            raise WeightSyncError(f"weight version {version}: the trainer yielded no tensors.")
        with clock("gather"):
            await feed.drain()
        self._verified |= {engine.url: version for engine in fleet.live}
        return nbytes

    async def _deliver(self, engine: EngineConnection, parcel: Parcel) -> None:
        answer = await engine.update(parcel.route, parcel.body, timeout_s=self._deadlines.stage_s)
        digests = answer.get("digests")
        if digests is None and not parcel.echoes:
            return
        if not isinstance(digests, Mapping):
            raise WeightSyncError(f"engine {engine.url}: expected the digests of what it staged, found none.")
        for name in parcel.digests.keys() | digests.keys():
            if digests.get(name) != parcel.digests.get(name):
                raise WeightSyncError(
                    f"engine {engine.url}: tensor {name}: it holds digest {digests.get(name)}, "
                    f"sent was {parcel.digests.get(name)}."
                )

    async def _commit(self, engine: EngineConnection, version: int) -> None:
        """Commit, then believe only the version that the engine reports: a lost answer may hide a commit."""
        lost: WeightSyncError | None = None
        try:
            await engine.end(version, timeout_s=self._deadlines.commit_s)
        except WeightSyncError as error:
            lost = error
        try:
            served = await engine.weight_version(timeout_s=self._deadlines.recover_s)
        except WeightSyncError as error:
            raise lost or error from error
        if served != str(version):
            raise lost or WeightSyncError(f"engine {engine.url}: committed {version}, but reports {served}.")

    async def _settle(self, fleet: Fleet, version: int, *, nbytes: int, clock: "_Clock") -> PushReport:
        report = _report(fleet, version, nbytes=nbytes, clock=clock)
        self._version = version
        await asyncio.to_thread(self._transport.settle, version)
        return report


class _Clock:
    """Wall seconds by phase."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - start


def _report(fleet: Fleet, version: int, *, nbytes: int, clock: _Clock) -> PushReport:
    report = PushReport(
        version=version,
        acknowledged=tuple(engine.url for engine in fleet.holding),
        failed=dict(fleet.failed),
        nbytes=nbytes,
        seconds=dict(clock.seconds),
    )
    if not report.acknowledged:
        raise NoEngineError(report)
    return report
