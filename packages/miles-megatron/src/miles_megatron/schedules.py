"""The learning rate as a function of the update's number."""

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from miles_core.config import Config


class ScheduleConfig(Config):
    """Linear warm-up, then constant, linear or cosine decay. Updates that were skipped count too."""

    kind: Literal["constant", "linear", "cosine"] = "constant"
    """Shape after the warm-up."""
    warmup_updates: int = Field(default=0, ge=0)
    """Updates over which the rate rises linearly; the first one has 1 / warmup_updates of it."""
    total_updates: int | None = Field(default=None, gt=0)
    """Update at which a decay ends (warm-up included)."""
    final_fraction: float = Field(default=0.0, ge=0, le=1)
    """What a decay leaves of the rate."""

    @model_validator(mode="after")
    def _check_total(self) -> Self:
        if self.kind != "constant" and (self.total_updates is None or self.total_updates <= self.warmup_updates):
            raise ValueError(
                f"a {self.kind} schedule needs total_updates above warmup_updates = {self.warmup_updates}, "
                f"found {self.total_updates}."
            )
        return self


def learning_rate(peak: float, update: int, *, schedule: ScheduleConfig) -> float:
    """The rate of an update (the first is 0) under a schedule whose highest rate is `peak`."""
    if update < schedule.warmup_updates:
        return peak * (update + 1) / schedule.warmup_updates
    if schedule.kind == "constant" or schedule.total_updates is None:
        return peak
    span = schedule.total_updates - schedule.warmup_updates
    progress = min((update - schedule.warmup_updates) / span, 1.0)
    shape = 1 - progress if schedule.kind == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return peak * (schedule.final_fraction + (1 - schedule.final_fraction) * shape)
