"""Ray, started for one run or joined."""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from miles_cli.run_config import RaySection
from miles_core.errors import MilesError

NOT_NEEDED = ("start_monitor", "start_log_monitor", "start_api_server")
"""Processes of a Ray head that serve autoscaling, log forwarding and the dashboard: five CPU seconds at every start."""
START_ATTEMPTS = 3
"""Ray gives its own processes a fixed time to start, which a busy machine can exceed."""


class Cluster:
    """A context manager around Ray. Enter it in the main thread: the processes of an embedded cluster die with the
    thread that started them."""

    def __init__(self, config: RaySection) -> None:
        self._config = config

    def __enter__(self) -> Self:
        logging.getLogger("ray").setLevel(logging.ERROR)
        for attempt in range(1, START_ATTEMPTS + 1):
            try:
                self._start()
            except MilesError:
                if attempt == START_ATTEMPTS:
                    raise
            else:
                break
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import ray

        ray.shutdown()

    def _start(self) -> None:
        import ray

        try:
            with _lean_head():
                ray.init(**self._arguments())
        except Exception as error:  # Ray raises bare exceptions here, such as for a start that took too long
            ray.shutdown()
            first = str(error).strip().splitlines()[0]
            raise MilesError(f"Ray did not start ({self._config.address}): {first}") from error

    def processes(self) -> Mapping[str, int]:
        """Role -> process id of what an embedded cluster consists of."""
        import ray

        node = ray._private.worker._global_node
        if node is None or self._config.address != "local":
            return {}
        found: dict[str, int] = {}
        for kind, started in node.all_processes.items():
            for number, info in enumerate(started):
                found[f"ray/{kind}" + (f"-{number}" if number else "")] = info.process.pid
        return found

    @property
    def gpus(self) -> int:
        """GPUs that Ray sees."""
        import ray

        return int(ray.cluster_resources().get("GPU", 0))

    def _arguments(self) -> dict[str, Any]:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
        if self._config.address != "local":
            return {"address": self._config.address, **quiet}
        return {
            "address": "local",
            "num_cpus": self._config.num_cpus or len(os.sched_getaffinity(0)),
            "object_store_memory": self._config.object_store_bytes,
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
            **quiet,
        }


@contextmanager
def _lean_head() -> Iterator[None]:
    """Start without the helpers in `NOT_NEEDED`, and without the thread that prints Ray's own view of dead workers.

    Delete this when `ray.init` has options for it. A Ray that names them differently starts them, which costs time.
    """
    from ray._private import node, worker

    patches = [(node.Node, name) for name in NOT_NEEDED] + [(worker, "listen_error_messages")]
    kept = [(owner, name, getattr(owner, name)) for owner, name in patches if hasattr(owner, name)]
    try:
        for owner, name, _ in kept:
            setattr(owner, name, lambda *_, **__: None)
        yield
    finally:
        for owner, name, original in kept:
            setattr(owner, name, original)
