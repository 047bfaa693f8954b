"""Checks in processes of their own: a template that never ends, or takes all memory, costs one process."""

import multiprocessing
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any

from miles_core.errors import MilesError
from miles_tito.verify.check import Settings, check_target
from miles_tito.verify.limits import end_with_parent, limit_cpu, limit_memory
from miles_tito.verify.report import Outcome, Unusable
from miles_tito.verify.targets import Target

_START_S = 120.0
"""Longest that a process may take to import what it needs."""
_MEMORY_BYTES = 8 << 30
"""Address space of one process: a template that doubles a text forever ends in an error, not in a full machine."""


def check_all(targets: Sequence[Target], settings: Settings, *, jobs: int, timeout_s: float) -> Iterator[Outcome]:
    """An outcome for each target, in order. jobs: processes at once. timeout_s: longest for one template.

    What cannot be checked (unreadable, raising, past its deadline) is an `Unusable` with one sentence.
    """
    outcomes: dict[int, Outcome] = {}
    waiting = list(enumerate(targets))[::-1]
    workers = [_Worker() for _ in range(min(jobs, len(targets)))]
    shown = 0
    try:
        while shown < len(targets):
            for place, worker in enumerate(workers):
                if worker.ready and waiting:
                    worker.give(*waiting.pop(), settings, timeout_s)
                elif worker.late:
                    outcomes |= worker.ended()
                    workers[place] = _Worker()
            for worker in _with_news(workers):
                outcomes |= worker.take()
            workers = [_Worker() if worker.dead and waiting else worker for worker in workers]
            while shown in outcomes:
                yield outcomes[shown]
                shown += 1
    finally:
        for worker in workers:
            worker.close()


class _Worker:
    """A process that checks one target after another."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, child = context.Pipe()
        self._process = context.Process(target=_serve, args=(child,), daemon=True)
        self._process.start()
        child.close()
        self._work: tuple[int, Target, float] | None = None
        self._started = False
        self._deadline = time.monotonic() + _START_S
        self.dead = False

    @property
    def ready(self) -> bool:
        """True when it has started and waits for work."""
        return self._started and self._work is None and not self.dead

    @property
    def late(self) -> bool:
        """True when it has not answered in time."""
        return not self.ready and not self.dead and time.monotonic() > self._deadline

    @property
    def connection(self) -> Connection:
        """What it answers through."""
        return self._connection

    @property
    def deadline(self) -> float:
        """When its answer is late, on the monotonic clock."""
        return self._deadline

    def give(self, place: int, target: Target, settings: Settings, timeout_s: float) -> None:
        """Start on a target."""
        self._work = (place, target, timeout_s)
        self._deadline = time.monotonic() + timeout_s
        self._connection.send((target, settings, timeout_s))

    def take(self) -> dict[int, Outcome]:
        """What it has answered: nothing at its start, else the outcome; the end of the process is an outcome too."""
        try:
            answer = self._connection.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            return self._unusable(
                f"expected the check to end with a report, found that its process ended with exit code "
                f"{self._process.exitcode}; a negative one is the signal that ended it, 9 for want of memory."
            )
        if not self._started:
            self._started = True
            return {}
        work, self._work = self._work, None
        return {} if work is None else {work[0]: answer}

    def ended(self) -> dict[int, Outcome]:
        """End a process that is late."""
        seconds = self._work[2] if self._work else _START_S
        return self._unusable(
            f"waited {seconds:g} s for its check to end; a template that loops never does, otherwise raise --timeout-s."
        )

    def _unusable(self, why: str) -> dict[int, Outcome]:
        work, self._work = self._work, None
        started = self._started
        self.close()
        if work is None and not started:
            raise MilesError(f"cannot start a process for checks: {why}")
        return {} if work is None else {work[0]: Unusable(name=work[1].name, path=str(work[1].path), why=why)}

    def close(self) -> None:
        """End the process, whatever it does."""
        self.dead = True
        self._connection.close()
        if self._process.is_alive():
            self._process.kill()
        self._process.join()


def _with_news(workers: Sequence[_Worker]) -> list[_Worker]:
    """Workers that have answered or ended, after a wait until one does or is late."""
    busy = {worker.connection: worker for worker in workers if not worker.dead and not worker.ready}
    if not busy:
        return []
    seconds = max(0.0, min(worker.deadline for worker in busy.values()) - time.monotonic())
    news: list[Any] = wait(list(busy), timeout=seconds + 0.01)
    return [busy[connection] for connection in news]


def _serve(connection: Connection) -> None:
    """The loop of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    limit_memory(_MEMORY_BYTES)
    with suppress(EOFError, ConnectionError):
        connection.send(None)
        while True:
            target, settings, timeout_s = connection.recv()
            limit_cpu(timeout_s)
            connection.send(outcome_of(target, settings))


def outcome_of(target: Target, settings: Settings) -> Outcome:
    """The report, or why there is none; in this process."""
    began = time.monotonic()
    try:
        report = check_target(target, settings)
    except (MilesError, ValueError) as error:
        why = " ".join(str(error).split())
    except OSError as error:
        why = f"cannot be read: {error.strerror or error}."
    except (RecursionError, MemoryError) as error:
        why = f"expected a template that ends, found {type(error).__name__}."
    else:
        if report.reached:
            return replace(report, seconds=round(time.monotonic() - began, 3))
        why = next((finding.what for finding in report.findings), "no conversation could be rendered.")
        why = f"expected a template that renders a user turn, found that {why}"
    return Unusable(name=target.name, path=str(target.path), why=why)
