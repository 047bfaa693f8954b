"""The better of two workers drawn at random."""

import random
from collections.abc import Sequence
from typing import Literal

from miles_core.config import Config
from miles_router.facts import RequestFacts
from miles_router.policies.policy import Policy
from miles_router.worker import Worker, load_order


class PowerOfTwoConfig(Config):
    """The less active of two workers drawn at random (Mitzenmacher 2001): several routers in front of the same
    workers, each of which sees its own calls alone, do not all run to the same one."""

    type: Literal["power_of_two"] = "power_of_two"
    seed: int | None = None
    """Seed of the draws; None takes one from the system, so that no two routers draw alike."""

    def build(self) -> Policy:
        """The policy."""
        return PowerOfTwo(random.Random(self.seed))


class PowerOfTwo(Policy):
    """See its config. draw: where the random numbers come from."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw

    def choose(self, candidates: Sequence[Worker], facts: RequestFacts) -> Worker:
        """The less active of two different candidates."""
        if len(candidates) == 1:
            return candidates[0]
        return min(self._draw.sample(candidates, 2), key=load_order)
