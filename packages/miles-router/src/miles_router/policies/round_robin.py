"""The workers in turn."""

from collections.abc import Sequence
from typing import Literal

from miles_core.config import Config
from miles_router.facts import RequestFacts
from miles_router.policies.policy import Policy
from miles_router.worker import Worker


class RoundRobinConfig(Config):
    """The workers in turn, whatever their load."""

    type: Literal["round_robin"] = "round_robin"

    def build(self) -> Policy:
        """The policy."""
        return RoundRobin()


class RoundRobin(Policy):
    """The candidate that was not chosen for longest: that keeps the turn when workers come, go and return."""

    def choose(self, candidates: Sequence[Worker], facts: RequestFacts) -> Worker:
        """The candidate whose last pick is the oldest."""
        return min(candidates, key=_last_pick)


def _last_pick(worker: Worker) -> int:
    return worker.turn
