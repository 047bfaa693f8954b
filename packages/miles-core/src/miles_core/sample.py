"""Spans, samples and groups: what a rollout hands to training."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from miles_core.errors import RecordError


class Origin(StrEnum):
    """Where the tokens of a span came from."""

    PROMPT = "prompt"
    SAMPLED = "sampled"
    ENVIRONMENT = "environment"
    GLUE = "glue"
    """Template text between turns."""


class Finish(StrEnum):
    """How a sample ended."""

    STOP = "stop"
    """The last turn ended by a stop token or stop string."""
    LENGTH = "length"
    """The last turn, or the sequence, ran into its length limit."""
    ABORTED = "aborted"
    """The rollout failed; `Sample.error` says why. Nothing of it is trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A run of token ids of one origin. Only `sampled` spans carry log-probabilities and weight versions.

    logprobs: natural log-probability of each id under the sampling distribution at the sampling temperature.
    weight_versions: version of the weights under which each id was sampled.
    trained: False masks a sampled span (for example after a hard token mismatch); its record stays complete.
    """

    origin: Origin
    ids: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    weight_versions: tuple[int, ...] = ()
    trained: bool = True

    def __post_init__(self) -> None:
        if self.ids and not 0 <= min(self.ids) <= max(self.ids) < 2**31:
            raise RecordError(f"expected token ids from 0 to 2**31 - 1, found {min(self.ids)} to {max(self.ids)}.")
        expected = len(self.ids) if self.origin is Origin.SAMPLED else 0
        for what, found in (("logprobs", len(self.logprobs)), ("weight versions", len(self.weight_versions))):
            if found != expected:
                raise RecordError(
                    f"a {self.origin} span of {len(self.ids)} ids needs {expected} {what}, found {found}."
                )
        if any(not math.isfinite(x) or x > 1e-6 for x in self.logprobs):
            raise RecordError("log-probabilities must be finite and at most 0; the engine sent something else.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One trajectory as exact tokens. A rollout that branched gives several samples with the same `rollout_id`.

    prompt_id, rollout_id: which prompt, and which of its rollouts, this is; stable across resume.
    reward: set once, by the reward step; None before.
    routing: `[len(ids) - 1, moe_layers, top_k]` unsigned, the experts chosen for each position, or None.
    messages: the conversation as the agent saw it, for reports.
    metadata: JSON values; whatever the agent returned lies under "agent".
    """

    prompt_id: str
    rollout_id: str
    spans: tuple[Span, ...]
    finish: Finish
    reward: float | None = None
    routing: NDArray[Any] | None = field(default=None, compare=False)
    error: str | None = None
    messages: tuple[Mapping[str, Any], ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.reward is not None and not math.isfinite(self.reward):
            raise RecordError(f"sample {self.rollout_id}: expected a finite reward, found {self.reward}.")
        if (self.finish is Finish.ABORTED) != (self.error is not None):
            raise RecordError(f"sample {self.rollout_id}: an aborted sample, and only one, carries its error.")
        if self.routing is not None:
            self._check_routing(self.routing)

    def _check_routing(self, routing: NDArray[Any]) -> None:
        rows = max(self.num_tokens - 1, 0)
        if routing.ndim != 3 or routing.shape[0] != rows or not np.issubdtype(routing.dtype, np.unsignedinteger):
            raise RecordError(
                f"sample {self.rollout_id}: expected routing [{rows}, layers, top_k] of unsigned integers, "
                f"found {list(routing.shape)} of {routing.dtype}."
            )

    @property
    def num_tokens(self) -> int:
        """Tokens of all spans."""
        return sum(len(span.ids) for span in self.spans)

    @property
    def ids(self) -> NDArray[np.int32]:
        """All token ids, `[num_tokens]`."""
        return np.fromiter((i for span in self.spans for i in span.ids), dtype=np.int32, count=self.num_tokens)

    @property
    def loss_mask(self) -> NDArray[np.bool_]:
        """True where a token was sampled and is trained, `[num_tokens]`; all False in an aborted sample."""
        live = self.finish is not Finish.ABORTED
        parts = [np.full(len(s.ids), live and s.trained and s.origin is Origin.SAMPLED) for s in self.spans]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.bool_)

    @property
    def logprobs(self) -> NDArray[np.float32]:
        """Log-probability of each sampled token, 0 elsewhere, `[num_tokens]`."""
        parts = [np.asarray(s.logprobs or np.zeros(len(s.ids)), dtype=np.float32) for s in self.spans]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.float32)

    @property
    def weight_versions(self) -> NDArray[np.int64]:
        """Weight version of each sampled token, -1 elsewhere, `[num_tokens]`."""
        parts = [np.asarray(s.weight_versions or np.full(len(s.ids), -1), dtype=np.int64) for s in self.spans]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    @property
    def prompt_length(self) -> int:
        """Tokens before the first sampled one (all of them when nothing was sampled)."""
        length = 0
        for span in self.spans:
            if span.origin is Origin.SAMPLED:
                return length
            length += len(span.ids)
        return length

    @property
    def response_length(self) -> int:
        """Tokens from the first sampled one to the end, sampled or not."""
        return self.num_tokens - self.prompt_length

    @property
    def num_trainable(self) -> int:
        """Tokens that training will use."""
        return int(self.loss_mask.sum())

    def with_reward(self, reward: float) -> Self:
        """The same sample with its reward."""
        return replace(self, reward=reward)

    def with_metadata(self, **entries: Any) -> Self:
        """The same sample with further metadata; equal keys are replaced."""
        return replace(self, metadata={**self.metadata, **entries})

    def aborted(self, error: str) -> Self:
        """The same sample, masked, with the reason; its reward becomes 0 when it had none."""
        return replace(self, finish=Finish.ABORTED, error=error, reward=0.0 if self.reward is None else self.reward)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """All samples of one prompt: the unit of advantage estimation."""

    prompt_id: str
    samples: tuple[Sample, ...]

    def __post_init__(self) -> None:
        strangers = {s.prompt_id for s in self.samples} - {self.prompt_id}
        if strangers:
            raise RecordError(f"group {self.prompt_id}: found samples of other prompts: {sorted(strangers)}.")
        found: dict[str, float] = {}
        for sample in self._judged():
            if sample.reward is not None and found.setdefault(sample.rollout_id, sample.reward) != sample.reward:
                raise RecordError(
                    f"group {self.prompt_id}: expected the samples of rollout {sample.rollout_id} to share one reward, "
                    f"found {found[sample.rollout_id]} and {sample.reward}."
                )

    def _judged(self) -> list[Sample]:
        return [s for s in self.samples if s.reward is not None and s.finish is not Finish.ABORTED]

    @property
    def rewards(self) -> Mapping[str, float]:
        """Reward of each rollout that was judged and not aborted; siblings of a split rollout share one."""
        return {s.rollout_id: s.reward for s in self._judged() if s.reward is not None}
