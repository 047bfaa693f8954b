"""The worker pool: who gets a call, who waits, who is sent nothing."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_core.errors import ConfigError
from miles_router.pool import NoWorkerError, Pool
from miles_router.urls import worker_url
from miles_router.worker import WorkerState


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def healthy_pool(*names: str, **options) -> Pool:
    pool = Pool(clock=Clock(), **options)
    for name in names:
        pool.probe_succeeded(pool.add(name), 0)
    return pool


def state(pool: Pool, url: str) -> WorkerState:
    return next(worker.state for worker in pool.workers if worker.url == url)


def test_the_least_active_worker_is_chosen_and_ties_take_turns():
    pool = healthy_pool("a", "b", "c")
    leases = [pool.try_acquire() for _ in range(6)]
    assert [lease.worker.url for lease in leases] == ["a", "b", "c", "a", "b", "c"]
    leases[1].release()
    leases[4].release()
    assert pool.try_acquire().worker.url == "b"


def test_one_call_at_a_time_is_spread_evenly():
    pool = healthy_pool("a", "b", "c")
    seen = Counter()
    for _ in range(30):
        lease = pool.try_acquire()
        seen[lease.worker.url] += 1
        lease.release()
    assert seen == {"a": 10, "b": 10, "c": 10}


def test_a_lease_counts_until_released_and_only_once():
    pool = healthy_pool("a")
    lease = pool.try_acquire()
    assert lease.worker.active == 1
    lease.release()
    lease.release()
    assert lease.worker.active == 0


def test_a_new_worker_gets_no_calls_before_its_first_probe():
    pool = Pool()
    pool.add("a")
    assert pool.try_acquire() is None
    assert state(pool, "a") is WorkerState.PROBING


def test_consecutive_failures_quarantine_and_a_success_between_starts_the_count_anew():
    pool = healthy_pool("a", failures=3)
    for outcome in ("bad", "bad", "good", "bad", "bad"):
        lease = pool.try_acquire()
        lease.succeeded() if outcome == "good" else lease.failed("500")
        lease.release()
    assert state(pool, "a") is WorkerState.HEALTHY
    lease = pool.try_acquire()
    lease.failed("500")
    lease.release()
    assert state(pool, "a") is WorkerState.QUARANTINED
    assert pool.try_acquire() is None


def test_a_refused_connection_quarantines_at_once():
    pool = healthy_pool("a", failures=3)
    pool.try_acquire().failed("refused", fatal=True)
    assert state(pool, "a") is WorkerState.QUARANTINED


def test_a_worker_back_from_quarantine_takes_one_call_at_a_time_until_one_succeeds():
    pool = healthy_pool("a")
    pool.quarantine("a", "test")
    worker = pool.workers[0]
    pool.probe_succeeded(worker, 0)
    assert worker.state is WorkerState.PROBING
    lease = pool.try_acquire()
    assert lease is not None
    assert pool.try_acquire() is None
    lease.succeeded()
    assert worker.state is WorkerState.HEALTHY
    assert pool.try_acquire() is not None


def test_one_failure_on_trial_is_enough_to_go_back():
    pool = healthy_pool("a", failures=3)
    pool.quarantine("a", "test")
    pool.probe_succeeded(pool.workers[0], 0)
    pool.try_acquire().failed("500")
    assert state(pool, "a") is WorkerState.QUARANTINED


def test_only_workers_at_the_current_weight_version_are_admitted():
    pool = healthy_pool("a", "b")
    pool.set_version(1)
    assert pool.try_acquire() is None
    pool.probe_succeeded(pool.workers[0], 1)
    pool.probe_succeeded(pool.workers[1], 0)
    assert {pool.try_acquire().worker.url for _ in range(3)} == {"a"}
    assert state(pool, "b") is WorkerState.PROBING
    pool.probe_succeeded(pool.workers[1], 1)
    # It was never ill, so it needs no trial.
    assert state(pool, "b") is WorkerState.HEALTHY


def test_a_quarantined_worker_is_not_readmitted_with_old_weights():
    pool = healthy_pool("a")
    pool.set_version(2)
    pool.quarantine("a", "push failed")
    pool.probe_succeeded(pool.workers[0], 1)
    assert state(pool, "a") is WorkerState.QUARANTINED
    pool.probe_succeeded(pool.workers[0], None)
    assert state(pool, "a") is WorkerState.QUARANTINED
    pool.probe_succeeded(pool.workers[0], 2)
    assert pool.try_acquire() is not None


def test_a_quarantined_worker_is_probed_less_and_less_often_up_to_the_bound():
    clock = Clock()
    pool = Pool(clock=clock, failures=1, probe_interval_s=1.0, max_backoff_s=5.0)
    worker = pool.add("a")
    pool.probe_succeeded(worker, 0)
    waits = []
    for _ in range(5):
        pool.probe_failed(worker, "down")
        waits.append(worker.next_probe_at - clock.now)
    assert waits == [1, 2, 4, 5, 5]


def test_a_worker_that_is_still_starting_is_probed_often_and_admitted_without_a_trial():
    clock = Clock()
    pool = Pool(clock=clock, failures=1, probe_interval_s=1.0)
    worker = pool.add("a")
    for _ in range(20):
        pool.probe_failed(worker, "refused")
        assert worker.next_probe_at - clock.now == 0.25
    assert worker.state is WorkerState.PROBING
    assert "refused" in pool.why_none()
    pool.probe_succeeded(worker, 0)
    assert worker.state is WorkerState.HEALTHY


def test_a_removed_worker_drains_and_goes_with_its_last_call():
    pool = healthy_pool("a", "b")
    lease = next(x for x in (pool.try_acquire(), pool.try_acquire()) if x.worker.url == "a")
    pool.remove("a")
    assert state(pool, "a") is WorkerState.DRAINING
    assert {pool.try_acquire().worker.url for _ in range(4)} == {"b"}
    pool.probe_succeeded(lease.worker, 0)
    assert state(pool, "a") is WorkerState.DRAINING
    lease.release()
    assert [worker.url for worker in pool.workers] == ["b"]


def test_waiting_calls_are_served_in_order_when_a_worker_comes():
    async def main():
        pool = Pool(max_active=1)
        order = []

        async def call(name):
            lease = await pool.acquire(timeout_s=5)
            order.append(name)
            await asyncio.sleep(0)
            lease.release()

        calls = [asyncio.create_task(call(name)) for name in "abc"]
        await asyncio.sleep(0.01)
        assert (pool.waiting, order) == (3, [])
        pool.probe_succeeded(pool.add("w"), 0)
        await asyncio.gather(*calls)
        assert order == ["a", "b", "c"]
        assert (pool.waiting, pool.workers[0].active) == (0, 0)

    asyncio.run(main())


def served_order(calls, *, head_start_s=5.0):
    """Names of calls in the order of service; calls: (name, arrival, priority), one worker that takes one at a time."""
    clock = Clock()

    async def main():
        pool = Pool(clock=clock, max_active=1, head_start_s=head_start_s)
        pool.probe_succeeded(pool.add("w"), 0)
        first = pool.try_acquire()
        order = []

        async def call(name, priority):
            lease = await pool.acquire(timeout_s=5, priority=priority)
            order.append(name)
            await asyncio.sleep(0)
            lease.release()

        tasks = []
        for name, arrival, priority in calls:
            clock.now = arrival
            tasks.append(asyncio.create_task(call(name, priority)))
            await asyncio.sleep(0)
        first.release()
        await asyncio.gather(*tasks)
        assert (pool.waiting, pool.workers[0].active) == (0, 0)
        return order

    return asyncio.run(main())


def test_a_call_with_priority_is_served_as_if_it_had_come_earlier():
    assert served_order([("a", 0, 0), ("b", 1, 0), ("c", 2, 1)]) == ["c", "a", "b"]
    assert served_order([("a", 0, 0), ("b", 1, -1), ("c", 3, 0)]) == ["a", "c", "b"]
    # A head start of 5 s is not enough against a call that waits for 6 already: nothing starves.
    assert served_order([("a", 0, 0), ("b", 6, 1)]) == ["a", "b"]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(-9, 9)), min_size=1, max_size=12))
def test_nobody_is_overtaken_by_a_call_that_came_later_than_its_head_start(calls):
    calls = sorted(calls)
    order = served_order([(number, *call) for number, call in enumerate(calls)], head_start_s=2.0)
    place = {name: n for n, name in enumerate(order)}
    for a, (arrival_a, priority_a) in enumerate(calls):
        for b, (arrival_b, priority_b) in enumerate(calls):
            if arrival_b > arrival_a + 2.0 * (priority_b - priority_a):
                assert place[a] < place[b]


def test_calls_that_gave_up_leave_nothing_in_the_queue():
    async def main():
        pool = Pool()
        tasks = [asyncio.create_task(pool.acquire(timeout_s=5)) for _ in range(500)]
        await asyncio.sleep(0)
        assert pool.waiting == 500
        for task in tasks[1:]:
            task.cancel()
        await asyncio.gather(*tasks[1:], return_exceptions=True)
        assert pool.waiting == 1
        assert len(pool._queue._heap) < 100
        pool.probe_succeeded(pool.add("w"), 0)
        (await tasks[0]).release()
        assert (pool.waiting, pool.workers[0].active) == (0, 0)

    asyncio.run(main())


def test_a_call_that_waits_past_its_deadline_is_told_what_keeps_the_workers():
    async def main():
        pool = healthy_pool("http://w")
        pool.quarantine("http://w", "it was unplugged")
        with pytest.raises(NoWorkerError, match=r"within 0\.02 s: http://w is quarantined \(it was unplugged\)"):
            await pool.acquire(timeout_s=0.02)
        assert pool.waiting == 0

    asyncio.run(main())


def test_a_queue_that_is_full_refuses_at_once():
    async def main():
        pool = Pool(max_queue=1)
        waiting = asyncio.create_task(pool.acquire(timeout_s=5))
        await asyncio.sleep(0)
        with pytest.raises(NoWorkerError, match="limit"):
            await pool.acquire(timeout_s=5)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert pool.waiting == 0

    asyncio.run(main())


def test_a_lease_granted_to_a_call_that_is_cancelled_in_that_moment_is_given_back():
    async def main():
        pool = Pool()
        waiting = asyncio.create_task(pool.acquire(timeout_s=5))
        await asyncio.sleep(0)
        pool.probe_succeeded(pool.add("w"), 0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert pool.workers[0].active == 0

    asyncio.run(main())


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["call", "end", "fail", "refuse", "probe", "miss", "quarantine", "version", "remove", "add"]),
        st.integers(0, 2),
        st.integers(0, 2),
    ),
    max_size=60,
)


@given(EVENTS)
def test_whatever_happens_counts_are_those_of_open_calls_and_only_admitted_workers_get_them(events):
    pool = healthy_pool("0", "1", "2", failures=2, max_active=2)
    leases = []
    for what, which, number in events:
        workers = {worker.url: worker for worker in pool.workers}
        worker = workers.get(str(which))
        if what == "call":
            admitted = {w.url for w in pool.workers if w.state in (WorkerState.HEALTHY, WorkerState.PROBING)}
            if lease := pool.try_acquire():
                assert lease.worker.url in admitted
                assert pool.version in (None, lease.worker.weight_version)
                assert lease.worker.active <= 2
                leases.append(lease)
        elif what in ("end", "fail", "refuse") and leases:
            lease = leases.pop(number % len(leases))
            if what == "end":
                lease.succeeded()
            else:
                lease.failed("x", fatal=what == "refuse")
            lease.release()
        elif what == "probe" and worker:
            pool.probe_succeeded(worker, number)
        elif what == "miss" and worker:
            pool.probe_failed(worker, "x")
        elif what == "quarantine":
            pool.quarantine(str(which), "x")
        elif what == "version":
            pool.set_version(number)
        elif what == "remove":
            pool.remove(str(which))
        elif what == "add":
            pool.add(str(which))
        open_calls = Counter(id(lease.worker) for lease in leases)
        assert all(worker.active == open_calls[id(worker)] for worker in pool.workers)
    for lease in leases:
        lease.release()
    assert all(worker.active == 0 for worker in pool.workers)
    assert not [worker for worker in pool.workers if worker.state is WorkerState.DRAINING]


@pytest.mark.parametrize("url", ["127.0.0.1:1", "ftp://a", "http://", "http://a:99999", "http://a/?x=1", ""])
def test_a_worker_that_is_no_base_url_is_refused(url):
    with pytest.raises(ConfigError, match="expected"):
        worker_url(url)


def test_one_worker_has_one_spelling():
    assert worker_url(" HTTP://Host:80/base/ ") == "http://host:80/base"
    # Calls bring the /v1 themselves.
    assert worker_url("https://host/v1") == worker_url("https://host/v1/") == "https://host"
    assert worker_url("https://host/api/v1") == "https://host/api"
    assert worker_url("https://host/v1/models") == "https://host/v1/models"
