"""The workers of a router: their states, their load, and the calls that wait for one."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from miles_core.errors import DeadlineError, MilesError


class WorkerState(StrEnum):
    """What the router thinks of a worker."""

    PROBING = "probing"
    """New, or at another weight version: gets no calls until a probe clears it. Back from quarantine: on trial, it
    takes one call at a time until one succeeds."""
    HEALTHY = "healthy"
    QUARANTINED = "quarantined"
    """Gets no calls until a probe finds it answering and at the current weight version."""
    DRAINING = "draining"
    """Gets no new calls and is removed when its last one ends."""


@dataclass(slots=True, eq=False)
class Worker:
    """One engine behind the router. Only its pool changes it."""

    url: str
    state: WorkerState = WorkerState.PROBING
    active: int = 0
    weight_version: int | None = None
    """The version its last probe reported; None when unknown or not a number."""
    failures: int = 0
    """Failed calls and probes in all."""
    consecutive: int = 0
    """Failed calls since the last success."""
    missed_probes: int = 0
    trial: bool = False
    seen: bool = False
    """True once it was healthy; a worker that is still starting is probed more often, not less."""
    reason: str = ""
    """Why it is in quarantine."""
    turn: int = 0
    """Number of the pick it was last chosen by; the longest unpicked wins a tie."""
    next_probe_at: float = 0.0

    def view(self) -> Mapping[str, Any]:
        """The entry of `/list_workers`."""
        return {
            "url": self.url,
            "state": str(self.state),
            "active": self.active,
            "weight_version": self.weight_version,
            "failures": self.failures,
            "reason": self.reason,
        }


class NoWorkerError(MilesError):
    """No worker could take a call within its deadline, or too many calls wait already."""


@dataclass(slots=True, eq=False)
class Lease:
    """One call's hold on a worker. It is counted until `release`, which may be called any number of times."""

    worker: Worker
    _pool: "Pool"
    _open: bool = True

    def succeeded(self) -> None:
        """The worker answered this call properly."""
        self._pool.call_succeeded(self.worker)

    def failed(self, reason: str, *, fatal: bool = False) -> None:
        """The worker failed this call; a fatal failure quarantines it without counting to the limit."""
        self._pool.call_failed(self.worker, reason, fatal=fatal)

    def release(self) -> None:
        """Give the place back."""
        if self._open:
            self._open = False
            self._pool.released(self.worker)


@dataclass(eq=False)
class Pool:
    """Least active worker first, ties to the one that waited longest; calls that find none wait in order.

    failures: consecutive failures that quarantine. max_active: calls per worker, 0 for no limit. All methods run on
    one event loop and none but `acquire` waits.
    """

    failures: int = 3
    max_active: int = 0
    max_queue: int = 4096
    probe_interval_s: float = 1.0
    max_backoff_s: float = 10.0
    clock: Callable[[], float] = time.monotonic
    version: int | None = None
    """The weight version that workers must report; None admits any."""
    _workers: dict[str, Worker] = field(default_factory=dict)
    _waiters: "deque[asyncio.Future[Lease]]" = field(default_factory=deque)
    _picks: int = 0

    @property
    def workers(self) -> tuple[Worker, ...]:
        """All workers in the order they were added."""
        return tuple(self._workers.values())

    @property
    def waiting(self) -> int:
        """Calls that wait for a worker."""
        return sum(not waiter.done() for waiter in self._waiters)

    def add(self, url: str) -> Worker:
        """Add a worker on probation; one that is there stays as it is, one that drains comes back on probation."""
        worker = self._workers.get(url)
        if worker is None:
            worker = self._workers[url] = Worker(url)
        elif worker.state is WorkerState.DRAINING:
            worker.state, worker.trial, worker.next_probe_at = WorkerState.PROBING, False, 0.0
        return worker

    def remove(self, url: str) -> Worker | None:
        """Drain a worker, which removes it when its last call ends; None when it is not here."""
        worker = self._workers.get(url)
        if worker is not None:
            worker.state = WorkerState.DRAINING
            self._drop_if_drained(worker)
        return worker

    def quarantine(self, url: str, reason: str) -> bool:
        """Send a worker nothing until a probe clears it; False when it is not here."""
        worker = self._workers.get(url)
        if worker is None:
            return False
        self._quarantine(worker, reason)
        return True

    def set_version(self, version: int) -> None:
        """From now on admit only workers that report `version`; all are due for a probe."""
        self.version = version
        for worker in self._workers.values():
            worker.next_probe_at = 0.0
        self._wake()

    def due(self) -> list[Worker]:
        """Workers whose next probe is due."""
        now = self.clock()
        return [w for w in self._workers.values() if w.next_probe_at <= now and w.state is not WorkerState.DRAINING]

    def probe_succeeded(self, worker: Worker, version: int | None) -> None:
        """A probe found the worker answering, at `version`."""
        worker.weight_version, worker.missed_probes = version, 0
        worker.next_probe_at = self.clock() + self.probe_interval_s
        if worker.state is WorkerState.DRAINING:
            return
        if not self._right_version(worker):
            worker.reason = f"weight version {version}, the current one is {self.version}"
            if worker.state is WorkerState.HEALTHY:
                worker.state = WorkerState.PROBING
            return
        if worker.state is WorkerState.QUARANTINED:
            worker.state, worker.trial = WorkerState.PROBING, True
        elif worker.state is WorkerState.PROBING:
            self._admit(worker)
        self._wake()

    def probe_failed(self, worker: Worker, reason: str) -> None:
        """A probe got no proper answer in time."""
        worker.failures += 1
        worker.missed_probes += 1
        wait = min(self.probe_interval_s * 2 ** min(worker.missed_probes - 1, 16), self.max_backoff_s)
        if not worker.seen:
            worker.reason, wait = reason, self.probe_interval_s / 4
        elif worker.state is WorkerState.HEALTHY and worker.missed_probes < self.failures:
            wait = self.probe_interval_s
        elif worker.state is not WorkerState.DRAINING:
            self._quarantine(worker, reason)
        worker.next_probe_at = self.clock() + wait

    def call_succeeded(self, worker: Worker) -> None:
        """A call to the worker got its answer."""
        worker.consecutive = 0
        if worker.state is WorkerState.PROBING and worker.trial:
            self._admit(worker)
            self._wake()

    def call_failed(self, worker: Worker, reason: str, *, fatal: bool) -> None:
        """A call to the worker failed by the worker's fault."""
        worker.failures += 1
        worker.consecutive += 1
        on_trial = worker.state is WorkerState.PROBING
        if fatal or on_trial or worker.consecutive >= self.failures:
            self._quarantine(worker, reason)

    def released(self, worker: Worker) -> None:
        """A call to the worker ended, whatever its outcome."""
        worker.active -= 1
        self._drop_if_drained(worker)
        self._wake()

    def try_acquire(self, exclude: Collection[str] = ()) -> Lease | None:
        """A place on the best worker outside `exclude`, or None."""
        best: Worker | None = None
        for worker in self._workers.values():
            if worker.url in exclude or not self._takes_calls(worker):
                continue
            if best is None or (worker.active, worker.turn) < (best.active, best.turn):
                best = worker
        if best is None:
            return None
        self._picks += 1
        best.turn = self._picks
        best.active += 1
        return Lease(best, self)

    async def acquire(self, *, timeout_s: float) -> Lease:
        """A place on the best worker, after those that wait already; NoWorkerError past the deadline."""
        if not self.waiting and (lease := self.try_acquire()):
            return lease
        if len(self._waiters) >= self.max_queue:
            raise NoWorkerError(f"{len(self._waiters)} calls wait for a worker already, which is the limit.")
        waiter: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                return await waiter
        except TimeoutError as error:
            self._give_back(waiter)
            raise NoWorkerError(f"no worker took the call within {timeout_s:g} s: {self.why_none()}.") from error
        except BaseException:
            self._give_back(waiter)
            raise
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def why_none(self) -> str:
        """What keeps the workers from taking calls, for an error message."""
        if not self._workers:
            return "no worker is registered"
        return ", ".join(
            f"{w.url} is {w.state}" + (f" ({w.reason})" if w.reason else f" with {w.active} active")
            for w in self._workers.values()
        )

    async def drained(self, url: str, *, timeout_s: float) -> None:
        """Wait until a draining worker is gone; DeadlineError past the deadline."""
        give_up = self.clock() + timeout_s
        while url in self._workers:
            if self.clock() > give_up:
                raise DeadlineError(f"waited {timeout_s:g} s for the last call of {url} to end.")
            await asyncio.sleep(0.01)

    def _give_back(self, waiter: "asyncio.Future[Lease]") -> None:
        if waiter.done() and not waiter.cancelled():
            waiter.result().release()

    def _takes_calls(self, worker: Worker) -> bool:
        if not self._right_version(worker):
            return False
        if worker.state is WorkerState.HEALTHY:
            return not self.max_active or worker.active < self.max_active
        return worker.state is WorkerState.PROBING and worker.trial and worker.active == 0

    def _right_version(self, worker: Worker) -> bool:
        return self.version is None or worker.weight_version == self.version

    def _admit(self, worker: Worker) -> None:
        worker.state, worker.trial, worker.seen = WorkerState.HEALTHY, False, True
        worker.consecutive, worker.missed_probes, worker.reason = 0, 0, ""

    def _quarantine(self, worker: Worker, reason: str) -> None:
        worker.reason = reason
        if worker.state is not WorkerState.DRAINING:
            worker.state, worker.trial = WorkerState.QUARANTINED, False
            worker.next_probe_at = max(worker.next_probe_at, self.clock() + self.probe_interval_s)

    def _drop_if_drained(self, worker: Worker) -> None:
        if worker.state is WorkerState.DRAINING and worker.active == 0:
            self._workers.pop(worker.url, None)

    def _wake(self) -> None:
        while self._waiters:
            if self._waiters[0].done():
                self._waiters.popleft()
                continue
            lease = self.try_acquire()
            if lease is None:
                return
            self._waiters.popleft().set_result(lease)
