"""From token losses to one number: the weight of a token depends on global counts only, never on its micro-batch."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from miles_core.errors import TrainError
from miles_megatron.choices import choose
from miles_megatron.tables import REDUCTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceCount:
    """A sequence of the update: which rollout it belongs to and how many of its tokens are trained."""

    rollout: tuple[str, str]
    """Group and rollout; siblings of one rollout have the same."""
    trained: int


Weights = list[float]
"""The weight of every trained token of a sequence, one number per sequence; the loss is the weighted sum."""


def token_mean(counts: Sequence[SequenceCount], constant: int | None) -> Weights:
    """Mean over all trained tokens of the update, over all ranks."""
    total = sum(count.trained for count in counts)
    return [1.0 / total if total else 0.0 for _ in counts]


def sequence_mean(counts: Sequence[SequenceCount], constant: int | None) -> Weights:
    """Mean over a rollout's trained tokens (its siblings together), then over rollouts, those without tokens too."""
    totals: Counter[tuple[str, str]] = Counter()
    for count in counts:
        totals[count.rollout] += count.trained
    return [1.0 / (totals[c.rollout] * len(totals)) if c.trained else 0.0 for c in counts]


def fixed_length(counts: Sequence[SequenceCount], constant: int | None) -> Weights:
    """Sum over all trained tokens of the update divided by a constant (Dr. GRPO)."""
    if not constant:
        raise TrainError("reduction fixed_length: expected a constant above 0 to divide by, found none.")
    return [1.0 / constant for _ in counts]


def choose_reduction(name: str) -> Callable[..., Weights]:
    """The reduction `(counts, constant) -> weight per sequence` that a name stands for."""
    return choose("reduction", name, table=REDUCTIONS, parameters=("counts", "constant"))
