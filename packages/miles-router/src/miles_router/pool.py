"""The workers of a router: their states, their load, and the calls that wait for one."""

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from miles_core.errors import DeadlineError, MilesError, PluginError
from miles_router.facts import RequestFacts
from miles_router.policies.least_active import LeastActive
from miles_router.policies.policy import Policy
from miles_router.queue import Waiter, WaitQueue
from miles_router.worker import Worker, WorkerState

NO_FACTS = RequestFacts()
"""Of a call that says nothing about itself."""


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
    """Gives each call a place on the worker that the policy chooses; calls that find none wait in order.

    failures: consecutive failures that quarantine. max_active: calls per worker, 0 for no limit. head_start_s: what a
    step of priority is worth in the queue. All methods run on one event loop and none but `acquire` waits.
    """

    policy: Policy = field(default_factory=LeastActive)
    failures: int = 3
    max_active: int = 0
    max_queue: int = 4096
    head_start_s: float = 5.0
    probe_interval_s: float = 1.0
    max_backoff_s: float = 10.0
    clock: Callable[[], float] = time.monotonic
    version: int | None = None
    """The weight version that workers must report; None admits any."""
    _workers: dict[str, Worker] = field(default_factory=dict)
    _admitted: list[Worker] | None = None
    """Workers that calls may go to as far as state and version decide; None when that has to be found out anew."""
    _picks: int = 0

    def __post_init__(self) -> None:
        self._queue = WaitQueue(head_start_s=self.head_start_s, clock=self.clock)

    @property
    def workers(self) -> tuple[Worker, ...]:
        """All workers in the order they were added."""
        return tuple(self._workers.values())

    @property
    def waiting(self) -> int:
        """Calls that wait for a worker."""
        return len(self._queue)

    def add(self, url: str) -> Worker:
        """Add a worker on probation; one that is there stays as it is, one that drains comes back on probation."""
        worker = self._workers.get(url)
        if worker is None:
            worker = self._workers[url] = Worker(url)
            self.policy.added(worker)
        elif worker.state is WorkerState.DRAINING:
            worker.state, worker.trial, worker.next_probe_at = WorkerState.PROBING, False, 0.0
        self._admitted = None
        return worker

    def remove(self, url: str) -> Worker | None:
        """Drain a worker, which removes it when its last call ends; None when it is not here."""
        worker = self._workers.get(url)
        if worker is not None:
            worker.state = WorkerState.DRAINING
            self._admitted = None
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
        self._admitted = None
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
        self._admitted = None
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
        self.policy.released(worker)
        if worker.state is WorkerState.DRAINING:
            self._drop_if_drained(worker)
        if self._queue:
            self._wake()

    def try_acquire(self, exclude: Collection[str] = (), facts: RequestFacts = NO_FACTS) -> Lease | None:
        """A place on the worker that the policy chooses outside `exclude`; None when no worker takes calls.

        PluginError when the policy fails or chooses another worker than it was offered.
        """
        candidates = self._candidates(exclude)
        if not candidates:
            return None
        worker = self._chosen(candidates, facts)
        self._picks += 1
        worker.turn = self._picks
        worker.picks += 1
        worker.active += 1
        self.policy.picked(worker, facts)
        return Lease(worker, self)

    async def acquire(self, *, timeout_s: float, facts: RequestFacts = NO_FACTS, priority: int = 0) -> Lease:
        """A place on a worker, in its turn after those that wait already; NoWorkerError past the deadline."""
        if not self._queue and (lease := self.try_acquire(facts=facts)):
            return lease
        if len(self._queue) >= self.max_queue:
            raise NoWorkerError(f"{len(self._queue)} calls wait for a worker already, which is the limit.")
        waiter = self._queue.join(facts, priority)
        try:
            async with asyncio.timeout(timeout_s):
                return await waiter.granted
        except TimeoutError as error:
            _give_back(waiter)
            raise NoWorkerError(f"no worker took the call within {timeout_s:g} s: {self.why_none()}.") from error
        except BaseException:
            _give_back(waiter)
            raise
        finally:
            self._queue.leave(waiter)

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

    def _candidates(self, exclude: Collection[str]) -> list[Worker]:
        """Workers that may take a call now."""
        admitted = self._admitted
        if admitted is None:
            admitted = self._admitted = [w for w in self._workers.values() if self._is_admitted(w)]
        if not exclude and not self.max_active and not any(worker.trial for worker in admitted):
            return admitted
        return [worker for worker in admitted if worker.url not in exclude and self._has_room(worker)]

    def _chosen(self, candidates: Sequence[Worker], facts: RequestFacts) -> Worker:
        try:
            worker = self.policy.choose(candidates, facts)
        except Exception as error:
            raise PluginError(f"the policy {type(self.policy).__name__} failed: {error!r}.") from error
        if worker not in candidates:
            raise PluginError(
                f"the policy {type(self.policy).__name__}: expected one of the candidates, found {worker!r}."
            )
        return worker

    def _is_admitted(self, worker: Worker) -> bool:
        on_trial = worker.state is WorkerState.PROBING and worker.trial
        return self._right_version(worker) and (worker.state is WorkerState.HEALTHY or on_trial)

    def _has_room(self, worker: Worker) -> bool:
        return worker.active < (1 if worker.trial else self.max_active or worker.active + 1)

    def _right_version(self, worker: Worker) -> bool:
        return self.version is None or worker.weight_version == self.version

    def _admit(self, worker: Worker) -> None:
        worker.state, worker.trial, worker.seen = WorkerState.HEALTHY, False, True
        worker.consecutive, worker.missed_probes, worker.reason = 0, 0, ""
        self._admitted = None

    def _quarantine(self, worker: Worker, reason: str) -> None:
        worker.reason = reason
        if worker.state is not WorkerState.DRAINING:
            worker.state, worker.trial = WorkerState.QUARANTINED, False
            self._admitted = None
            worker.next_probe_at = max(worker.next_probe_at, self.clock() + self.probe_interval_s)

    def _drop_if_drained(self, worker: Worker) -> None:
        if worker.state is WorkerState.DRAINING and worker.active == 0 and worker.url in self._workers:
            del self._workers[worker.url]
            self._admitted = None
            self.policy.removed(worker)

    def _wake(self) -> None:
        while waiter := self._queue.first():
            try:
                lease = self.try_acquire(facts=waiter.facts)
            except PluginError as error:
                waiter.granted.set_exception(error)
                continue
            if lease is None:
                return
            self._queue.leave(waiter)
            waiter.granted.set_result(lease)


def _give_back(waiter: Waiter) -> None:
    granted = waiter.granted
    if granted.done() and not granted.cancelled() and granted.exception() is None:
        granted.result().release()
