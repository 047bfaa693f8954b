"""Advantage estimators: one file each, named in `ADVANTAGES`."""

from collections.abc import Callable

from miles_megatron.advantages.rollouts import Advantages, RewardedSequence
from miles_megatron.choices import choose
from miles_megatron.tables import ADVANTAGES

AdvantageFn = Callable[..., Advantages]


def choose_advantage(name: str) -> AdvantageFn:
    """The estimator `(sequences, *, std) -> one float64 value per sequence` that a name stands for."""
    return choose("advantage", name, table=ADVANTAGES, parameters=("sequences",), keywords=("std",))


__all__ = ["ADVANTAGES", "AdvantageFn", "Advantages", "RewardedSequence", "choose_advantage"]
