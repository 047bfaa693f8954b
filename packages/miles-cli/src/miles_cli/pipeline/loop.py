"""The run, as an algorithm. Everything it touches is a protocol; `wiring.py` says what stands behind each."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from miles_core.batch import TrainBatch
from miles_core.sample import Finish, Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """The groups of one step, in an order that does not depend on timing, and what was counted on the way.

    cursor: where the data source stands after this step, as JSON.
    """

    groups: Sequence[Group]
    metrics: Mapping[str, float]
    cursor: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a run stands between two steps: what a checkpoint holds beside the trainer's own state.

    step: the next one to run. weight_version: what the engines serve then. cursor: of the data source, None before it
    was used.
    """

    step: int = 0
    weight_version: int = 0
    cursor: Mapping[str, Any] | None = None


class Rollouts(Protocol):
    """Plays out prompts against the engines."""

    async def run(self, step: int) -> Rollout:
        """The groups of one step. Raises RolloutError when too many failed."""
        ...


class Trainers(Protocol):
    """All ranks of the trainer, as one."""

    async def step(self, batch: TrainBatch) -> Mapping[str, float]:
        """One optimizer step; the metrics are equal on every rank."""
        ...

    async def push(self, version: int) -> Mapping[str, Any]:
        """The current weights to every engine, as `version`."""
        ...

    async def save(self, position: Position) -> None:
        """Publish a checkpoint from which the run continues at `position`."""
        ...


class Observer(Protocol):
    """Sees the run: display, metrics file, report."""

    def phase(self, name: str, total: int) -> None:
        """A phase of a step begins; total: what `advance` counts up to, 0 when unknown."""
        ...

    def step(self, record: Mapping[str, Any]) -> None:
        """A step is done; its metrics, with everything that depends on timing under "time"."""
        ...


class Clock:
    """Seconds of each phase of one step; `began_s` counts from the start of the run."""

    def __init__(self, origin: float) -> None:
        self._begin = time.monotonic()
        self.began_s = self._begin - origin
        self.spent: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Measure a phase."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self.spent[phase] = time.monotonic() - begin

    def times(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """What goes under "time" in a step's record: seconds of each phase, and tokens per second."""
        rates = {
            f"{phase}_tokens_per_s": metrics[f"{phase}_tokens"] / max(seconds, 1e-9)
            for phase, seconds in self.spent.items()
            if f"{phase}_tokens" in metrics
        }
        spent = {f"{phase}_s": seconds for phase, seconds in self.spent.items()}
        return {"started_s": self.began_s, **spent, "step_s": time.monotonic() - self._begin, **rates}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """The synchronous run. origin: `time.monotonic()` when the command started."""

    rollouts: Rollouts
    trainers: Trainers
    observer: Observer
    steps: int
    rollouts_per_step: int
    save_every: int
    temperature: float
    origin: float = field(default_factory=time.monotonic)

    async def run(self, position: Position) -> Position:
        """Every step from `position` to the last; the answer is where the run stands then.

        A step none of whose samples can be trained (all dropped or aborted) trains nothing and keeps the weights.
        """
        while position.step < self.steps:
            clock, step = Clock(self.origin), position.step
            self.observer.phase("rollout", self.rollouts_per_step)
            with clock("rollout"):
                rollout = await self.rollouts.run(step)
            trained, version = await self._learn(rollout, clock, position)
            position = Position(step=step + 1, weight_version=version, cursor=rollout.cursor)
            self.observer.step(record_of(step, version, {**rollout.metrics, **trained}, clock))
            if position.step % self.save_every == 0 or position.step == self.steps:
                self.observer.phase("save", 0)
                await self.trainers.save(position)
        return position

    async def _learn(self, rollout: Rollout, clock: Clock, position: Position) -> tuple[Mapping[str, float], int]:
        samples = [sample for group in rollout.groups for sample in group.samples]
        if not any(sample.num_tokens and sample.finish is not Finish.ABORTED for sample in samples):
            return {}, position.weight_version
        batch = TrainBatch.of(rollout.groups, step=position.step, temperature=self.temperature)
        self.observer.phase("train", len(batch.sequences))
        with clock("train"):
            trained = await self.trainers.step(batch)
        version = position.weight_version + 1
        self.observer.phase("push", 0)
        with clock("push"):
            await self.trainers.push(version)
        return trained, version


def record_of(step: int, version: int, metrics: Mapping[str, float], clock: Clock) -> dict[str, Any]:
    """A step's line of metrics: equal in equal runs, apart from what is under "time"."""
    steady = {key: value for key, value in metrics.items() if not key.startswith("time/")}
    inner = {key.removeprefix("time/"): value for key, value in metrics.items() if key.startswith("time/")}
    return {"step": step, "weight_version": version, **steady, "time": {**clock.times(metrics), **inner}}
