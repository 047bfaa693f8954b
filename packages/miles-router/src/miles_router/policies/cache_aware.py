"""The worker whose prefix cache holds most of the prompt, as long as that keeps the load even."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from miles_core.config import Config
from miles_router.facts import BYTES_PER_TOKEN, RequestFacts
from miles_router.policies.bounded_load import within_bound
from miles_router.policies.policy import Policy
from miles_router.radix import RadixTree
from miles_router.worker import Worker, load_order


class CacheAwareConfig(Config):
    """The worker that was sent most of the prompt before (a radix tree for each), while its load stays within bounds;
    among workers that hold about as much of it, the least active."""

    type: Literal["cache_aware"] = "cache_aware"
    load_factor: float = Field(default=1.5, ge=1.0)
    """A worker is passed over while it has more than this multiple of the mean load, plus `slack`: in calls in flight,
    and in recent prompt tokens that no cache held."""
    slack: int = Field(default=4, ge=0)
    """Calls above the bound that never cost a warm cache; for recent tokens, so many prompts of the mean length."""
    indifference: float = Field(default=0.05, ge=0.0, le=1.0)
    """Matches that differ by less than this share of the prompt are equal: what they would save is not worth an uneven
    load."""
    window_prompts: int = Field(default=128, gt=0)
    """Recent means: so many prompts per worker, the older ones fading."""
    max_mib_per_worker: int = Field(default=64, gt=0)
    """Memory of a worker's tree; what was not used for longest is forgotten first."""

    def build(self) -> Policy:
        """The policy."""
        return CacheAware(self)


class _Memory:
    """What one worker was sent."""

    __slots__ = ("recent", "tree")

    def __init__(self, max_bytes: int) -> None:
        self.tree = RadixTree(max_bytes=max_bytes)
        self.recent = 0.0
        """Prompt bytes sent to it, faded: the share of the traffic that it carries."""


class CacheAware(Policy):
    """See its config.

    A prefix that most calls share cannot gather them on the worker that saw it first: once that worker carries more
    than its share of recent traffic it is passed over, and a worker that carries far less than its share is given a
    call whatever it holds. So all are sent the prefix, and from then on they hold about the same of it and load
    decides. What is a session's own still draws it to its worker.
    """

    def __init__(self, config: CacheAwareConfig) -> None:
        self._config = config
        self._memories: dict[str, _Memory] = {}
        self._prompts = 0.0
        self._prompt_bytes = 0.0
        """Recent prompts and their bytes, both faded alike."""

    def added(self, worker: Worker) -> None:
        """Begin with an empty memory, and the mean share of recent traffic, so that the others lose nothing at once."""
        memory = _Memory(self._config.max_mib_per_worker << 20)
        memory.recent = sum(m.recent for m in self._memories.values()) / max(1, len(self._memories))
        self._memories[worker.url] = memory

    def removed(self, worker: Worker) -> None:
        """Forget the worker."""
        self._memories.pop(worker.url, None)

    def choose(self, candidates: Sequence[Worker], facts: RequestFacts) -> Worker:
        """The candidate with the longest match that is within its bounds."""
        prefix = facts.prefix
        if not prefix or len(candidates) == 1:
            return min(candidates, key=load_order)
        if (starved := self._starved(candidates)) is not None:
            return starved
        allowed = self._fair(within_bound(candidates, factor=self._config.load_factor, slack=self._config.slack))
        matches = {worker.url: self._memories[worker.url].tree.match(prefix) for worker in allowed}
        enough = max(matches.values()) - max(BYTES_PER_TOKEN, self._config.indifference * len(prefix))
        equal = [worker for worker in allowed if matches[worker.url] >= enough]
        return min(equal, key=self._evenly)

    def picked(self, worker: Worker, facts: RequestFacts) -> None:
        """Remember the prompt as the worker's."""
        if not facts.prefix:
            return
        fade = 1.0 - 1.0 / (self._config.window_prompts * max(1, len(self._memories)))
        for memory in self._memories.values():
            memory.recent *= fade
        self._prompts = self._prompts * fade + 1.0
        self._prompt_bytes = self._prompt_bytes * fade + len(facts.prefix)
        memory = self._memories[worker.url]
        memory.recent += len(facts.prefix)
        memory.tree.insert(facts.prefix)

    def _starved(self, candidates: Sequence[Worker]) -> Worker | None:
        """The idle candidate that carries less than half of the mean share of recent traffic, if there is one.

        Without it, a prefix that all calls share would stay on as few workers as the upper bound allows.
        """
        poorest = min(candidates, key=self._evenly)
        mean = sum(self._memories[worker.url].recent for worker in candidates) / len(candidates)
        if 2 * self._memories[poorest.url].recent + self._slack() < mean:
            return poorest
        return None

    def _fair(self, candidates: list[Worker]) -> list[Worker]:
        """Those that carry no more than their share of recent traffic; never empty."""
        shares = [self._memories[worker.url].recent for worker in candidates]
        bound = self._config.load_factor * sum(shares) / len(shares) + self._slack()
        bound = max(bound, min(shares))  # a mean of equal numbers may round to less than each of them
        return [worker for worker, share in zip(candidates, shares, strict=True) if share <= bound]

    def _slack(self) -> float:
        """Bytes of so many prompts of the mean length as the config leaves free."""
        return self._config.slack * self._prompt_bytes / max(self._prompts, 1.0)

    def _evenly(self, worker: Worker) -> tuple[int, float, int]:
        return worker.active, self._memories[worker.url].recent, worker.turn
