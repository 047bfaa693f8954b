"""Rewards by group and rollout: what every advantage estimator starts from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from miles_core.errors import TrainError

Advantages = tuple[NDArray[np.float64], ...]
"""One array `[trained tokens]` per sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardedSequence:
    """One sequence as an estimator sees it.

    reward: of the whole rollout; sequences of one rollout (siblings) carry the same one. trained: trained tokens.
    """

    group_id: str
    rollout_id: str
    reward: float
    trained: int


def rewards_by_rollout(sequences: Sequence[RewardedSequence]) -> dict[str, dict[str, float]]:
    """`{group_id: {rollout_id: reward}}`, in order of first appearance; siblings of one rollout count once.

    Raises TrainError when siblings of one rollout disagree about its reward.
    """
    groups: dict[str, dict[str, float]] = {}
    for sequence in sequences:
        rollouts = groups.setdefault(sequence.group_id, {})
        known = rollouts.setdefault(sequence.rollout_id, sequence.reward)
        if known != sequence.reward:
            raise TrainError(
                f"rollout {sequence.rollout_id} of group {sequence.group_id}: expected one reward for all its "
                f"sequences, found {known} and {sequence.reward}."
            )
    return groups


def spread(sequences: Sequence[RewardedSequence], values: dict[str, dict[str, float]]) -> Advantages:
    """Each rollout's value on every trained token of its sequences."""
    shape: Any = [(s.trained, values[s.group_id][s.rollout_id]) for s in sequences]
    return tuple(np.full(trained, value, dtype=np.float64) for trained, value in shape)
