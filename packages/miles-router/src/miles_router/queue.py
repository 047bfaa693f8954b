"""The calls that wait for a worker: in order of arrival, with a head start for those that matter more."""

import asyncio
import heapq
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING

from miles_router.facts import RequestFacts

if TYPE_CHECKING:
    from miles_router.pool import Lease


class Waiter:
    """One call that waits. granted: its place on a worker, once there is one."""

    __slots__ = ("facts", "granted", "waiting")

    def __init__(self, facts: RequestFacts) -> None:
        self.facts = facts
        self.granted: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self.waiting = True


class WaitQueue:
    """Serves the smallest of `arrival - priority * head_start_s`.

    Nothing starves: a call is overtaken only by calls that come within the head start that they have over it.
    """

    def __init__(self, *, head_start_s: float, clock: Callable[[], float]) -> None:
        self._head_start_s = head_start_s
        self._clock = clock
        self._heap: list[tuple[float, int, Waiter]] = []
        self._order = count()
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def join(self, facts: RequestFacts, priority: int) -> Waiter:
        """Begin to wait. priority: 0 for an ordinary call, more for one that is to be served earlier."""
        waiter = Waiter(facts)
        heapq.heappush(self._heap, (self._clock() - priority * self._head_start_s, next(self._order), waiter))
        self._waiting += 1
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """End to wait, for whatever reason; any number of times."""
        if waiter.waiting:
            waiter.waiting = False
            self._waiting -= 1
            if len(self._heap) > 2 * self._waiting + 64:
                self._heap = [entry for entry in self._heap if entry[2].waiting]
                heapq.heapify(self._heap)

    def first(self) -> Waiter | None:
        """The call whose turn it is."""
        while self._heap:
            waiter = self._heap[0][2]
            if waiter.waiting and not waiter.granted.done():
                return waiter
            heapq.heappop(self._heap)
            self.leave(waiter)
        return None
