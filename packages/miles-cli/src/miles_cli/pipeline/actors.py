"""The processes of a run, as Ray actors. Each is a thin host: what it holds is built by `wiring.py`.

Every actor is threaded: `live` stays pending for as long as the process lives, which is how its death is noticed.
Heavy modules are imported inside `start`, so that all processes import at the same time.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from miles_cli.pipeline.loop import Rollout
from miles_cli.pipeline.process import keep_for_good, settle
from miles_core import env
from miles_core.batch import TrainBatch

T = TypeVar("T")
THREADS = 8
"""Calls an actor answers at once: `live`, `progress` and `close` beside the work itself."""
BEAT_S = 0.2


class Server(Protocol):
    """Something that listens at `url`."""

    url: str

    def stop(self) -> None:
        """Stop listening and release everything."""
        ...


class Member:
    """What every process of a run has: a role, a log, threads, and a call that ends with it."""

    def __init__(self, role: str, logs: Path, threads: int) -> None:
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            env.export(name, str(threads), override=True)
        self._pid = settle(role, logs)
        self._closed = threading.Event()

    def pid(self) -> int:
        """Its process id."""
        return self._pid

    def live(self) -> None:
        """Return when the process was closed; the caller sees an error when it died."""
        self._closed.wait()

    def close(self) -> None:
        """Release what the process holds."""
        self._closed.set()


class Service(Member):
    """A process that listens: an engine, the router, the session server."""

    def __init__(self, role: str, logs: Path, threads: int) -> None:
        super().__init__(role, logs, threads)
        self._server: Server | None = None

    def prepare(self, warm: Callable[..., None], *arguments: Any) -> None:
        """Import ahead of `start`, while what `start` needs is still coming up."""
        warm(*arguments)

    def start(self, build: Callable[..., Server], *arguments: Any) -> str:
        """Build the server and return its URL once it answers."""
        self._server = build(*arguments)
        keep_for_good()
        return self._server.url

    def child(self) -> int | None:
        """Process id of a server that this process started, None when it serves itself."""
        return getattr(self._server, "child", None)

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.stop()
        super().close()


class TrainerRank(Member):
    """One rank of the trainer; rank 0 also pushes weights. All tensor work happens in one thread."""

    def __init__(self, role: str, logs: Path, threads: int) -> None:
        super().__init__(role, logs, threads)
        self._torch = ThreadPoolExecutor(1, "torch")
        self._backend: Any = None
        self._push: Callable[..., Mapping[str, Any]] | None = None

    def prepare_model(self, build: Callable[..., Path], *arguments: Any) -> Path:
        """Bring the model into a folder and return it."""
        return self._on_torch(build, *arguments)

    def start(self, build: Callable[..., Any], *arguments: Any) -> None:
        """Build the backend; every rank has to be started for this to return."""
        self._backend = self._on_torch(build, *arguments)
        keep_for_good()

    def start_pusher(self, build: Callable[..., Callable[..., Mapping[str, Any]]], *arguments: Any) -> None:
        """Rank 0 only: build what takes the weights to the engines."""
        self._push = build(*arguments)

    def step(self, batch: TrainBatch) -> Mapping[str, float]:
        """One training step."""
        return self._on_torch(self._backend.step, batch)

    def push(self, version: int, engines: Sequence[tuple[str, str | None]]) -> Mapping[str, Any] | None:
        """Take part in reading the weights; rank 0 sends them and returns the report."""
        if self._push is None:
            self._on_torch(lambda: [None for _ in self._backend.weights()])
            return None
        return self._push(self._backend, version, engines)

    def save(self, folder: Path) -> None:
        """This rank's share of a checkpoint."""
        self._on_torch(self._backend.save, folder)

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote."""
        self._on_torch(self._backend.load, folder)

    def export(self, folder: Path) -> None:
        """The model as a Hugging Face folder; every rank takes part."""
        self._on_torch(self._backend.export, folder)

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a function of the wiring in the thread that owns the tensors."""
        return self._on_torch(function, *arguments)

    def close(self) -> None:
        """Release the backend."""
        if self._backend is not None:
            self._on_torch(self._backend.close)
        super().close()

    def _on_torch(self, function: Callable[..., T], *arguments: Any) -> T:
        return self._torch.submit(function, *arguments).result()


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the running step's rollouts are. blocked_s: how long agent code has kept the event loop from running."""

    done: int = 0
    total: int = 0
    tokens: int = 0
    blocked_s: float = 0.0


class Player(Protocol):
    """What plays out one step; built by the wiring."""

    async def open(self) -> None:
        """Start what has to run before the first step."""
        ...

    async def play(self, step: int, report: Callable[[Progress], None]) -> Rollout:
        """The groups of the step."""
        ...

    async def close(self) -> None:
        """Release workers and connections."""
        ...


class RolloutHost(Member):
    """Runs the agents. Agent code that blocks its event loop blocks this process, never the controller."""

    def __init__(self, role: str, logs: Path, threads: int) -> None:
        super().__init__(role, logs, threads)
        self._progress = Progress()
        self._player: Player | None = None
        self._beat = time.monotonic()
        self._loop = asyncio.new_event_loop()
        self._loop.call_soon(self._tick)
        threading.Thread(target=self._loop.run_forever, name="rollouts", daemon=True).start()

    def prepare(self, warm: Callable[..., None], *arguments: Any) -> None:
        """Import agent, reward and data ahead of `start`: a fault in them is found before anything waits for it."""
        warm(*arguments)

    def start(self, build: Callable[..., Player], *arguments: Any) -> None:
        """Build what plays out a step."""
        self._player = build(*arguments)
        asyncio.run_coroutine_threadsafe(self._player.open(), self._loop).result()
        keep_for_good()

    def play(self, step: int) -> Rollout:
        """The groups of one step."""
        if self._player is None:
            raise AssertionError("play before start")
        self._progress = Progress()
        return asyncio.run_coroutine_threadsafe(self._player.play(step, self._report), self._loop).result()

    def progress(self) -> Progress:
        """How far the running step is."""
        return replace(self._progress, blocked_s=time.monotonic() - self._beat)

    def close(self) -> None:
        """End reward workers and connections."""
        if self._player is not None:
            asyncio.run_coroutine_threadsafe(self._player.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        super().close()

    def _tick(self) -> None:
        self._beat = time.monotonic()
        self._loop.call_later(BEAT_S, self._tick)

    def _report(self, progress: Progress) -> None:
        self._progress = progress
