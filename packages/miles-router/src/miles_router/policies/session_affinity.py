"""Calls with one key go to one worker, by consistent hashing with bounded load."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from miles_core.config import Config
from miles_router.facts import RequestFacts
from miles_router.policies.bounded_load import within_bound
from miles_router.policies.policy import Policy
from miles_router.ring import Ring
from miles_router.worker import Worker, load_order


class SessionAffinityConfig(Config):
    """Calls with one key go to one worker, whose prefix cache holds what came before (consistent hashing with bounded
    load); calls without a key go to the least active."""

    type: Literal["session_affinity"] = "session_affinity"
    header: str = "X-SMG-Routing-Key"
    """The header that holds the key."""
    virtual_nodes: int = Field(default=128, gt=0)
    """Points of each worker on the ring: more make the shares more even."""
    load_factor: float = Field(default=1.25, ge=1.0)
    """A worker is passed over while it has more than this multiple of the mean load, plus `slack`."""
    slack: int = Field(default=4, ge=0)
    """Calls above the bound that never move a key: with little load, evenness is worth less than a warm cache."""

    def build(self) -> Policy:
        """The policy."""
        return SessionAffinity(self)


class SessionAffinity(Policy):
    """A ring of all workers; a key belongs to the first worker at or after its hash that is a candidate.

    A worker that is no candidate is passed at once and its keys go to their next workers, each to its own; they come
    back with it. No key moves between two workers that stay.
    """

    def __init__(self, config: SessionAffinityConfig) -> None:
        self._config = config
        self._header = config.header.lower().encode()
        self._ring = Ring(points=config.virtual_nodes)

    def added(self, worker: Worker) -> None:
        """Put the worker's points on the ring."""
        self._ring.add(worker.url)

    def removed(self, worker: Worker) -> None:
        """Take the worker's points off the ring."""
        self._ring.remove(worker.url)

    def choose(self, candidates: Sequence[Worker], facts: RequestFacts) -> Worker:
        """The key's worker, or the next ones on the ring while it is away or too busy."""
        key = facts.header(self._header)
        if not key:
            return min(candidates, key=load_order)
        allowed = within_bound(candidates, factor=self._config.load_factor, slack=self._config.slack)
        by_url = {worker.url: worker for worker in allowed}
        for url in self._ring.owners(key):
            if worker := by_url.get(url):
                return worker
        return min(allowed, key=load_order)
