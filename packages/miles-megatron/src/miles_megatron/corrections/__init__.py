"""Corrections for the mismatch between the engine that sampled and the trainer, named in `CORRECTIONS`."""

from collections.abc import Callable

from torch import Tensor

from miles_megatron.choices import choose
from miles_megatron.tables import CORRECTIONS


def choose_correction(name: str) -> Callable[..., Tensor]:
    """The correction `(old, rollout, bound) -> weights [tokens]` that a name stands for."""
    return choose("correction", name, table=CORRECTIONS, parameters=("old", "rollout", "bound"))


__all__ = ["CORRECTIONS", "choose_correction"]
