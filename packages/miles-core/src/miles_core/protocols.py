"""What the packages ask of each other. Concrete classes meet only in `miles_cli/pipeline/wiring.py`."""

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from miles_core.batch import TrainBatch
from miles_core.prompt import Prompt, SamplingConfig
from miles_core.sample import Group, Sample

if TYPE_CHECKING:
    from miles_core.rollout.session_client import SessionClient


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutContext:
    """What a generate function may use for one rollout. Everything is by value or by URL.

    rollout_id: `"{step}/{prompt_id}/{index}"`; seed: from the run's seed tree, for this rollout alone.
    session_url: base URL of the session server, without a trailing slash. token: its bearer token, if any.
    max_seq_len: most tokens of the whole trajectory. timeout_s: deadline of the whole rollout.
    sessions: an open client of that server which rollouts of one process share; without it each opens its own.
    """

    rollout_id: str
    step: int
    seed: int
    session_url: str
    sampling: SamplingConfig
    max_seq_len: int
    timeout_s: float
    token: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    sessions: "SessionClient | None" = field(default=None, compare=False, repr=False)


class Generate(Protocol):
    """One rollout of one prompt. A failure is returned as an aborted sample, never raised."""

    async def __call__(self, prompt: Prompt, context: RolloutContext) -> Sample | Sequence[Sample]:
        """The samples of the rollout."""
        ...


class Agent(Protocol):
    """Ordinary agent code: calls `base_url` like any OpenAI endpoint, imports nothing of Miles.

    base_url ends in `/v1`. request_kwargs go into each chat completion call: `model`, and `extra_headers` with the
    bearer token if there is one. prompt holds `prompt_id`, `messages` and `tools`, never the label.
    The returned mapping, if any, reaches the reward as `sample.metadata["agent"]`.
    """

    async def __call__(
        self,
        *,
        base_url: str,
        prompt: Mapping[str, Any],
        request_kwargs: Mapping[str, Any],
        metadata: Mapping[str, Any],
    ) -> Mapping[str, Any] | None:
        """Play the episode; a plain function does as well and runs in a thread."""
        ...


class RewardFn(Protocol):
    """Judges one sample: `(sample, prompt, **options) -> float`, finite, larger is better; async or not."""

    def __call__(self, sample: Sample, prompt: Prompt, **options: Any) -> float | Awaitable[float]:
        """The reward."""
        ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """A filter's answer: keep the group or drop it, and why."""

    keep: bool
    reason: str = ""


class GroupFilter(Protocol):
    """Keeps or drops a whole group before training."""

    def __call__(self, group: Group) -> Verdict:
        """Keep, or drop with a reason."""
        ...


@runtime_checkable
class DataSource(Protocol):
    """Prompts in a reproducible order with a cursor that a checkpoint can hold."""

    def next(self, count: int) -> list[Prompt]:
        """Exactly `count` prompts, going on into the next epoch where one ends."""
        ...

    def state(self) -> Mapping[str, Any]:
        """The cursor as JSON."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a cursor that `state` gave."""
        ...


class Trainer(Protocol):
    """One rank of a training backend."""

    def step(self, batch: TrainBatch) -> Mapping[str, float]:
        """One optimizer step on the batch; every rank gets the whole batch and takes its share."""
        ...

    def save(self, folder: Path) -> None:
        """Write parameters, optimizer, scheduler, step and RNG into `folder` (published by the caller)."""
        ...

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote."""
        ...

    def export(self, folder: Path) -> None:
        """Write the model as a Hugging Face folder."""
        ...


class WeightSync(Protocol):
    """Takes the trainer's current weights to every engine."""

    async def push(self, version: int) -> Mapping[str, Any]:
        """Push as `version`; the answer names the engines that hold it and those that failed."""
        ...


class Tracker(Protocol):
    """Receives the metrics of a run."""

    def start(self, config: Mapping[str, Any]) -> None:
        """The run begins, with this resolved configuration."""
        ...

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """The figures of one step."""
        ...

    def finish(self) -> None:
        """The run ended."""
        ...
