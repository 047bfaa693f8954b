"""Group-relative advantages (GRPO, arXiv 2402.03300; without the standard deviation Dr. GRPO, arXiv 2503.20783)."""

import math
from collections.abc import Sequence

from miles_megatron.advantages.rollouts import Advantages, RewardedSequence, rewards_by_rollout, spread

STD_EPSILON = 1e-6


def grpo(sequences: Sequence[RewardedSequence], *, std: bool = True) -> Advantages:
    """The group-centred reward of each rollout on all its trained tokens, in float64.

    With `std` it is divided by the group's unbiased standard deviation + 1e-6. A group whose rewards are all equal, or
    a group of one, gets exactly 0. Siblings of one rollout share its value and count as one member of the group.
    """
    groups = rewards_by_rollout(sequences)
    return spread(sequences, {name: _centred(rewards, std=std) for name, rewards in groups.items()})


def _centred(rewards: dict[str, float], *, std: bool) -> dict[str, float]:
    values = list(rewards.values())
    if all(value == values[0] for value in values):
        return dict.fromkeys(rewards, 0.0)
    mean = math.fsum(values) / len(values)
    scale = 1.0
    if std:
        variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
        scale = math.sqrt(variance) + STD_EPSILON
    return {name: (value - mean) / scale for name, value in rewards.items()}
