"""The supervised run, as an algorithm: demonstrations -> trainer -> checkpoint."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from miles_cli.pipeline.loop import Clock, Observer, Position, Trainers, record_of
from miles_core.batch import TrainBatch


class Batches(Protocol):
    """Demonstrations in a reproducible order."""

    def next(self, step: int) -> TrainBatch:
        """The batch of a step."""
        ...

    def state(self) -> Mapping[str, Any]:
        """Where the order stands, as JSON."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SftLoop:
    """The supervised run. origin: `time.monotonic()` when the command started."""

    batches: Batches
    trainers: Trainers
    observer: Observer
    steps: int
    save_every: int
    origin: float

    async def run(self, position: Position) -> Position:
        """Every step from `position` to the last; the answer is where the run stands then."""
        if position.cursor is not None:
            self.batches.restore(position.cursor)
        while position.step < self.steps:
            clock, step = Clock(self.origin), position.step
            with clock("data"):
                batch = await asyncio.to_thread(self.batches.next, step)
            self.observer.phase("train", len(batch.sequences))
            with clock("train"):
                trained = await self.trainers.step(batch)
            position = Position(step=step + 1, weight_version=step + 1, cursor=self.batches.state())
            self.observer.step(record_of(step, step + 1, trained, clock))
            if position.step % self.save_every == 0 or position.step == self.steps:
                self.observer.phase("save", 0)
                await self.trainers.save(position)
        return position
