"""The engines of one push: who is still in it, and why the others are not."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from miles_core.errors import WeightSyncError
from miles_sync.receivers.endpoint import EngineConnection


class Fleet:
    """Runs each phase on all engines at once; an engine that fails a phase takes no part in the later ones."""

    def __init__(self, engines: Sequence[EngineConnection]) -> None:
        self.live = list(engines)
        """Engines that have passed every phase so far."""
        self.failed: dict[str, str] = {}
        """Reason of each lost engine, by URL."""
        self._engines = tuple(engines)
        self._spared: list[EngineConnection] = []
        self._lost: list[EngineConnection] = []

    @property
    def holding(self) -> tuple[EngineConnection, ...]:
        """Live and spared engines, in the order in which they were given."""
        return tuple(engine for engine in self._engines if engine in self.live or engine in self._spared)

    def set_aside(self, engines: Sequence[EngineConnection]) -> None:
        """Spare engines that hold the version already: they take part in `resume` only."""
        self._spared = list(engines)
        self.live = [engine for engine in self.live if engine not in engines]

    async def each(self, call: Callable[[EngineConnection], Awaitable[None]]) -> None:
        """Await `call` for every live engine concurrently; WeightSyncError of one takes it out."""
        engines = list(self.live)
        outcomes = await asyncio.gather(*(_reason(call(engine)) for engine in engines))
        for engine, reason in zip(engines, outcomes, strict=True):
            if reason is not None:
                self._lose(engine, reason)

    async def restore(self, *, timeout_s: float) -> None:
        """Drop what the lost engines staged. An engine that does not answer is left as it is: quarantine covers it."""
        await asyncio.gather(*(_reason(engine.abort(timeout_s=timeout_s)) for engine in self._lost))

    async def resume(self, *, timeout_s: float, recover_s: float) -> None:
        """Let every engine generate again, on whatever version it holds."""
        lost = list(self._lost)
        self.live, self._spared = [*self.live, *self._spared], []
        await self.each(lambda engine: engine.resume(timeout_s=timeout_s))
        await asyncio.gather(*(_reason(engine.resume(timeout_s=recover_s)) for engine in lost))

    async def abandon(self, *, timeout_s: float) -> None:
        """Give the whole push up: every engine drops what it staged and goes on with the version it holds."""
        for engine in list(self.live):
            self._lose(engine, "the push was given up")
        await self.restore(timeout_s=timeout_s)
        await self.resume(timeout_s=timeout_s, recover_s=timeout_s)

    def _lose(self, engine: EngineConnection, reason: str) -> None:
        self.live.remove(engine)
        self._lost.append(engine)
        self.failed[engine.url] = reason


async def _reason(call: Awaitable[None]) -> str | None:
    try:
        await call
    except WeightSyncError as error:
        return str(error)
    return None
