"""The trainer and the rollouts as the loop sees them: calls to processes, with deadlines."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from miles_cli.pipeline.calls import within
from miles_cli.pipeline.engine_fleet import Endpoint
from miles_cli.pipeline.loop import Position, Rollout
from miles_cli.pipeline.resume import write_position
from miles_core.batch import TrainBatch
from miles_core.errors import MilesError, RolloutError
from miles_megatron.checkpoint import CheckpointStore

PROGRESS_S = 0.2


class RemoteTrainers:
    """All ranks as one. Whatever touches the weights holds one lock, and no push carries weights under a version that
    is not theirs. ready: done when every rank has started; calls wait for it and raise what it raises."""

    def __init__(
        self,
        ranks: Sequence[Any],
        *,
        endpoints: Callable[[], list[Endpoint]],
        store: CheckpointStore,
        timeout_s: float,
        note: Callable[[str], None],
        ready: "asyncio.Future[Any] | None" = None,
    ) -> None:
        self._ranks = ranks
        self._ready = ready
        self._endpoints = endpoints
        self._store = store
        self._timeout_s = timeout_s
        self._note = note
        self._lock = asyncio.Lock()
        self._version = 0
        self._stale = False
        """Between a training step and its push the weights belong to no version yet."""

    async def step(self, batch: TrainBatch) -> Mapping[str, float]:
        """One training step on every rank."""
        import ray

        async with self._lock:
            self._stale = True
            shared = ray.put(batch)
            metrics: Mapping[str, float] = (await self._all("training step", "step", shared))[0]
            return metrics

    async def push(self, version: int) -> Mapping[str, Any]:
        """The weights to every engine that serves, as `version`."""
        async with self._lock:
            report = await self._push(version)
            self._version, self._stale = version, False
            return report

    async def catch_up(self) -> None:
        """Bring engines that lack the current version to it; the next push does it when the weights just changed."""
        async with self._lock:
            if self._version and not self._stale:
                await self._push(self._version)

    async def save(self, position: Position) -> None:
        """Every rank writes its share into one folder, which is published whole or not at all."""
        async with self._lock:
            with self._store.writing(position.step) as folder:
                await self._all("checkpoint", "save", folder)
                write_position(folder, position)

    async def load(self, folder: Path, version: int) -> None:
        """Continue from a checkpoint: trainer state on every rank, then its weights on every engine."""
        async with self._lock:
            await self._all("loading the checkpoint", "load", folder)
        if version and self._endpoints():
            await self.push(version)

    async def export(self, folder: Path) -> None:
        """The model as a Hugging Face folder."""
        async with self._lock:
            await self._all("export", "export", folder)

    async def _push(self, version: int) -> Mapping[str, Any]:
        reports = await self._all(f"push of weight version {version}", "push", version, self._endpoints())
        report: Mapping[str, Any] = reports[0]
        for url, reason in report["failed"].items():
            self._note(f"engine {url} did not take weight version {version}: {reason}")
        return report

    async def _all(self, what: str, method: str, *arguments: Any) -> list[Any]:
        if self._ready is not None:
            await asyncio.shield(self._ready)
        calls = [getattr(rank, method).remote(*arguments) for rank in self._ranks]
        named = f"the {what} on {len(calls)} trainer rank(s)"
        return list(await asyncio.gather(*(within(self._timeout_s, named, call) for call in calls)))


class RemoteRollouts:
    """The rollout process. timeout_s: of one step's rollouts, all waves of them and their rewards.

    blocked_s: longest that agent code may keep the event loop of all agents from running.
    """

    def __init__(self, actor: Any, *, timeout_s: float, blocked_s: float, advance: Callable[[int, int], None]) -> None:
        self._actor = actor
        self._timeout_s, self._blocked_s = timeout_s, blocked_s
        self._advance = advance

    async def run(self, step: int) -> Rollout:
        """The groups of one step; progress is reported while they are played out."""
        what = f"the rollouts of step {step}"
        playing = asyncio.ensure_future(within(self._timeout_s, what, self._actor.play.remote(step)))
        following = asyncio.ensure_future(self._follow(step))
        try:
            await asyncio.wait({playing, following}, return_when=asyncio.FIRST_COMPLETED)
            if following.done() and not playing.done():
                following.result()
            return await playing
        finally:
            for task in (playing, following):
                task.cancel()
            await asyncio.gather(playing, following, return_exceptions=True)

    async def _follow(self, step: int) -> None:
        """Report progress; RolloutError when agent code blocks the event loop that all agents share."""
        while True:
            await asyncio.sleep(PROGRESS_S)
            try:
                progress = await within(30.0, "the progress of the rollouts", self._actor.progress.remote())
            except MilesError:
                return  # the call that plays them says what is wrong
            self._advance(progress.done, progress.tokens)
            if progress.blocked_s > self._blocked_s:
                raise RolloutError(
                    f"step {step}: agent code has blocked the event loop for {progress.blocked_s:.0f} s "
                    f"(allowed are {self._blocked_s:g} s); use async calls in it, or make it a plain function."
                )
