"""The worker with the fewest calls in flight."""

from collections.abc import Sequence
from typing import Literal

from miles_core.config import Config
from miles_router.facts import RequestFacts
from miles_router.policies.policy import Policy
from miles_router.worker import Worker, load_order


class LeastActiveConfig(Config):
    """The worker with the fewest calls in flight; ties go to the one that was not chosen for longest."""

    type: Literal["least_active"] = "least_active"

    def build(self) -> Policy:
        """The policy."""
        return LeastActive()


class LeastActive(Policy):
    """See its config."""

    def choose(self, candidates: Sequence[Worker], facts: RequestFacts) -> Worker:
        """The least active candidate."""
        return min(candidates, key=load_order)
