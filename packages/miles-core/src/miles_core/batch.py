"""What a trainer consumes: one list of records, checked when built."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from miles_core.errors import RecordError
from miles_core.sample import Finish, Group, Sample


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainSequence:
    """One sequence to train on. All arrays are `[num_tokens]` and aligned with `ids`.

    Position t's values concern the token ids[t] itself: loss_mask[t] says whether ids[t] is trained,
    rollout_logprobs[t] is its log-probability when it was sampled.
    """

    group_id: str
    rollout_id: str
    ids: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    rollout_logprobs: NDArray[np.float32]
    weight_versions: NDArray[np.int64]
    reward: float
    routing: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        lengths = {len(self.ids), len(self.loss_mask), len(self.rollout_logprobs), len(self.weight_versions)}
        if len(lengths) != 1:
            raise RecordError(f"sequence {self.rollout_id}: arrays of different lengths {sorted(lengths)}.")
        if len(self.ids) and self.loss_mask[0]:
            raise RecordError(f"sequence {self.rollout_id}: the first token has no context and cannot be trained.")
        if not math.isfinite(self.reward):
            raise RecordError(f"sequence {self.rollout_id}: expected a finite reward, found {self.reward}.")
        if self.routing is not None and (self.routing.ndim != 3 or len(self.routing) != max(len(self.ids) - 1, 0)):
            raise RecordError(
                f"sequence {self.rollout_id}: expected routing of {len(self.ids) - 1} positions, layers and choices, "
                f"found {list(self.routing.shape)}."
            )

    @property
    def num_tokens(self) -> int:
        """Tokens of the sequence."""
        return len(self.ids)

    @classmethod
    def of(cls, sample: Sample) -> Self:
        """The training view of a sample that has its reward."""
        if sample.reward is None:
            raise RecordError(f"sample {sample.rollout_id}: expected a reward before training, found none.")
        return cls(
            group_id=sample.prompt_id,
            rollout_id=sample.rollout_id,
            ids=sample.ids,
            loss_mask=sample.loss_mask,
            rollout_logprobs=sample.logprobs,
            weight_versions=sample.weight_versions,
            reward=sample.reward,
            routing=sample.routing,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainBatch:
    """The sequences of one training step, in an order that does not depend on timing.

    temperature: of the sampling; log-probabilities are those of logits / temperature.
    """

    step: int
    sequences: tuple[TrainSequence, ...]
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not self.sequences:
            raise RecordError(f"step {self.step}: expected at least one sequence to train on, found none.")
        if self.temperature <= 0:
            raise RecordError(f"step {self.step}: expected a temperature above 0, found {self.temperature}.")

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences."""
        return sum(s.num_tokens for s in self.sequences)

    @property
    def num_trainable(self) -> int:
        """Tokens of all sequences that are trained: the global denominator of `token_mean`."""
        return sum(int(s.loss_mask.sum()) for s in self.sequences)

    @classmethod
    def of(cls, groups: Sequence[Group], *, step: int, temperature: float = 1.0) -> Self:
        """Groups in their given order, samples in theirs. Aborted samples and samples without tokens are left out."""
        return cls(step=step, sequences=tuple(_sequences(groups)), temperature=temperature)


def _sequences(groups: Iterable[Group]) -> Iterable[TrainSequence]:
    seen: set[str] = set()
    for group in groups:
        if group.prompt_id in seen:
            raise RecordError(f"expected each group once in a batch, found {group.prompt_id} twice.")
        seen.add(group.prompt_id)
        for sample in group.samples:
            if sample.num_tokens and sample.finish is not Finish.ABORTED:
                yield TrainSequence.of(sample)
