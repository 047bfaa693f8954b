"""What a router counts, for Prometheus."""

from collections.abc import Iterator
from http import HTTPStatus

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from miles_router.pool import Pool
from miles_router.worker import WorkerState

_KNOWN = frozenset(int(status) for status in HTTPStatus)


class RouterMetrics:
    """Counters of one router in a registry of their own; gauges are read from the pool when scraped."""

    def __init__(self, pool: Pool) -> None:
        self.registry = CollectorRegistry()
        self.answers = Counter(
            "miles_router_answers", "Proxied calls by status (0: the caller left)", ["status"], registry=self.registry
        )
        self.retries = Counter("miles_router_retries", "Calls sent to one more worker", registry=self.registry)
        self.cut = Counter("miles_router_cut_answers", "Answers that broke off half-way", registry=self.registry)
        self.wait = Histogram(
            "miles_router_queue_seconds",
            "Time that calls waited for a worker, of those that had to",
            buckets=(0.001, 0.01, 0.1, 1, 5, 30, 120),
            registry=self.registry,
        )
        self.registry.register(_PoolCollector(pool))
        self._by_status: dict[int, Counter] = {}

    def answered(self, status: int) -> None:
        """Count an answer. A status that HTTP does not know counts as "other", so that no worker can add series."""
        counter = self._by_status.get(status)
        if counter is None:
            known = status == 0 or status in _KNOWN
            counter = self._by_status[status] = self.answers.labels(str(status) if known else "other")
        counter.inc()

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)


class _PoolCollector(Collector):
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def collect(self) -> Iterator[Metric]:
        workers = self._pool.workers
        active = GaugeMetricFamily("miles_router_active", "Calls in flight by worker", labels=["worker"])
        picks = CounterMetricFamily("miles_router_picks", "Calls given to each worker", labels=["worker"])
        failures = CounterMetricFamily("miles_router_failures", "Failed calls and probes by worker", labels=["worker"])
        state_of = GaugeMetricFamily("miles_router_worker_state", "1 for its state", labels=["worker", "state"])
        for worker in workers:
            active.add_metric([worker.url], worker.active)
            picks.add_metric([worker.url], worker.picks)
            failures.add_metric([worker.url], worker.failures)
            for state in WorkerState:
                state_of.add_metric([worker.url, state.value], worker.state is state)
        states = GaugeMetricFamily("miles_router_workers", "Workers by state", labels=["state"])
        for state in WorkerState:
            states.add_metric([state.value], sum(w.state is state for w in workers))
        yield from (active, picks, failures, state_of, states)
        yield GaugeMetricFamily("miles_router_queue", "Calls that wait for a worker", value=self._pool.waiting)
