"""What a router counts, for Prometheus."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from miles_router.pool import Pool, WorkerState


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

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)


class _PoolCollector(Collector):
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def collect(self) -> Iterator[Metric]:
        active = GaugeMetricFamily("miles_router_active", "Calls in flight by worker", labels=["worker"])
        failures = GaugeMetricFamily("miles_router_failures", "Failed calls and probes by worker", labels=["worker"])
        for worker in self._pool.workers:
            active.add_metric([worker.url], worker.active)
            failures.add_metric([worker.url], worker.failures)
        states = GaugeMetricFamily("miles_router_workers", "Workers by state", labels=["state"])
        for state in WorkerState:
            states.add_metric([state.value], sum(w.state is state for w in self._pool.workers))
        yield from (active, failures, states)
        yield GaugeMetricFamily("miles_router_queue", "Calls that wait for a worker", value=self._pool.waiting)
