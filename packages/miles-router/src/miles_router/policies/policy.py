"""What a router asks of a policy."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from miles_router.facts import RequestFacts
from miles_router.worker import Worker


class Policy(ABC):
    """Chooses the worker for a call. The notifications are for policies that remember; here they do nothing.

    All methods run on the router's event loop, in the order of events, and must not block.
    """

    @abstractmethod
    def choose(self, candidates: Sequence[Worker], facts: RequestFacts) -> Worker:
        """One of the candidates: the workers that may take this call now, at least one, in the order they joined.

        A choice is not yet a pick: what it changes in the policy's memory belongs in `picked`.
        """

    def picked(self, worker: Worker, facts: RequestFacts) -> None:  # noqa: B027 - optional
        """The call goes to this worker, which it is counted on already."""

    def released(self, worker: Worker) -> None:  # noqa: B027 - optional
        """A call to the worker ended, whatever its outcome; it is no longer counted."""

    def added(self, worker: Worker) -> None:  # noqa: B027 - optional
        """A worker joined; it gets no calls before it is first among the candidates."""

    def removed(self, worker: Worker) -> None:  # noqa: B027 - optional
        """A worker is gone for good."""
