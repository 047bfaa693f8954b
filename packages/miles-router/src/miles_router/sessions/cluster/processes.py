"""The processes of a cluster: started, watched, started again; their shards moved when one comes or goes."""

import asyncio
import logging
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from miles_core.errors import SessionError
from miles_router.ring import Ring
from miles_router.sessions.cluster.assignment import assign, plan_moves
from miles_router.sessions.cluster.worker import SECRET_HEADER, Orders
from miles_router.sessions.config import SessionServerConfig
from miles_router.sessions.log.frames import session_hash

logger = logging.getLogger(__name__)

START_S = 60.0
"""Longest that a process may take to serve."""
PROBE_S = 2.0
"""Time between two looks at a process, and half of how long it may take to answer."""
PROBE_FAILURES = 5
"""Looks in a row without an answer after which a process is ended: its shards go to others only once it is dead."""
MOST_BACK_OFF_S = 10.0
"""Longest pause before a process that ended is started again."""
RETRY_MOVE_S = 0.2
"""Pause before shards that could not be moved are asked for again."""


@dataclass(slots=True)
class Worker:
    """One process. url: None while it does not serve."""

    name: str
    process: asyncio.subprocess.Process | None = None
    url: str | None = None
    starts: int = 0
    held: set[int] = field(default_factory=set)


class Cluster:
    """So many session server processes that share the shards of one log. Methods run on one event loop."""

    def __init__(self, config: SessionServerConfig, *, processes: int, num_shards: int, log_level: str) -> None:
        self._orders = Orders(config=config, secret=secrets.token_hex(16), log_level=log_level)
        self._num_shards = num_shards
        self._ring = Ring()
        self._workers = {str(number): Worker(str(number)) for number in range(processes)}
        for name in self._workers:
            self._ring.add(name)
        self._changed = asyncio.Event()
        self._moving = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._client: aiohttp.ClientSession | None = None
        self._turn = 0

    async def start(self) -> None:
        """Start every process; return when each shard has an owner. SessionError 503 when that takes too long.

        Shards are dealt out once all processes serve, so that none moves right away, or after half of the time.
        """
        self._client = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=START_S))
        self._tasks = [asyncio.create_task(self._keep(worker)) for worker in self._workers.values()]
        give_up = time.monotonic() + START_S
        with suppress(SessionError):
            while not all(worker.url for worker in self._workers.values()):
                await self._wait(give_up - START_S / 2, "every session process to start")
        self._tasks.append(asyncio.create_task(self._move()))
        while len(self._holders()) < self._num_shards:
            await self._wait(give_up, "the session processes to start")

    async def close(self) -> None:
        """End every process, each with what it recorded on disk."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        await asyncio.gather(*(_stop(worker) for worker in self._workers.values()))
        if self._client is not None:
            await self._client.close()

    async def owner(self, session_id: str, *, deadline: float) -> str:
        """The URL of the process that has the session; SessionError 503 when none has by the deadline (monotonic)."""
        shard = session_hash(session_id) % self._num_shards
        while (name := self._holders().get(shard)) is None:
            await self._wait(deadline, "a process to take the session over")
        return self._workers[name].url or ""

    async def anyone(self, *, deadline: float) -> str:
        """The URL of some process that can begin a session; SessionError 503 as in `owner`."""
        while not (serving := [worker for worker in self._workers.values() if worker.url and worker.held]):
            await self._wait(deadline, "a session process to start")
        self._turn += 1
        return serving[self._turn % len(serving)].url or ""

    def suspect(self, url: str) -> None:
        """A call to this process failed: look at it now."""
        for worker in self._workers.values():
            if worker.url == url and worker.process is not None and worker.process.returncode is not None:
                self._lost(worker)

    def view(self) -> Sequence[Mapping[str, Any]]:
        """The processes as JSON."""
        return [
            {
                "name": worker.name,
                "pid": None if worker.process is None else worker.process.pid,
                "serving": worker.url is not None,
                "starts": worker.starts,
                "shards": sorted(worker.held),
            }
            for worker in self._workers.values()
        ]

    async def _wait(self, deadline: float, what: str) -> None:
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                await self._changed.wait()
        except TimeoutError:
            raise SessionError(f"waited too long for {what}.", status=503) from None

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _holders(self) -> Mapping[int, str]:
        return {shard: worker.name for worker in self._workers.values() if worker.url for shard in worker.held}

    async def _keep(self, worker: Worker) -> None:
        """Start the process again and again, ever more slowly while it ends soon."""
        quick = 0
        while True:
            began = time.monotonic()
            try:
                await self._run(worker)
            except (OSError, SessionError) as error:
                logger.error("session process %s: %s", worker.name, error)  # noqa: TRY400
            finally:
                self._lost(worker)
                await _kill(worker)
            quick = quick + 1 if time.monotonic() - began < MOST_BACK_OFF_S else 0
            await asyncio.sleep(min(MOST_BACK_OFF_S, 0.1 * 2**quick))

    async def _run(self, worker: Worker) -> None:
        """One life of a process, from its start to its end."""
        worker.process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "miles_router.sessions.cluster.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        worker.starts += 1
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(self._orders.encode())
        await process.stdin.drain()
        try:
            async with asyncio.timeout(START_S):
                line = await process.stdout.readline()
        except TimeoutError:
            raise SessionError(f"waited {START_S:g} s for it to serve.") from None
        if not line:
            raise SessionError("it ended before it served; its messages say why.")
        worker.url = line.decode().strip()
        self._moving.set()
        self._notify()
        ended = asyncio.create_task(process.wait())
        try:
            await self._watch(worker, ended)
        finally:
            ended.cancel()

    async def _watch(self, worker: Worker, ended: "asyncio.Task[int]") -> None:
        """Return when the process ended, or answers nothing for long."""
        failures = 0
        while not ended.done() and failures < PROBE_FAILURES:
            await asyncio.wait({ended}, timeout=PROBE_S)
            if ended.done():
                break
            try:
                await self._call(worker, "GET", "/health", timeout_s=2 * PROBE_S)
                failures = 0
            except SessionError:
                failures += 1
        logger.warning("session process %s %s.", worker.name, "ended" if ended.done() else "hangs and is ended")

    def _lost(self, worker: Worker) -> None:
        worker.url = None
        worker.held.clear()
        self._moving.set()
        self._notify()

    async def _move(self) -> None:
        """Bring shards to where they belong, whenever something changed or could not be done at once."""
        while True:
            self._moving.clear()
            alive = [worker.name for worker in self._workers.values() if worker.url]
            moves = plan_moves(assign(self._num_shards, self._ring, alive), self._holders())
            asked = [self._ask("release", name, shards) for name, shards in moves.release.items()]
            asked += [self._ask("acquire", name, shards) for name, shards in moves.acquire.items()]
            await asyncio.gather(*asked)
            self._notify()
            with suppress(TimeoutError):
                # A shard that a session is at work in, or whose last owner is on its way out, is asked for again.
                async with asyncio.timeout(RETRY_MOVE_S if asked else None):
                    await self._moving.wait()

    async def _ask(self, what: str, name: str, shards: Sequence[int]) -> None:
        """Let a process release or acquire shards, one after the other so that each serves as soon as it can."""
        worker = self._workers[name]
        for shard in shards:
            url = worker.url
            if what == "release":
                worker.held.discard(shard)
            try:
                answer = await self._call(worker, "POST", f"/cluster/{what}", {"shards": [shard]}, timeout_s=START_S)
            except SessionError:
                return
            if worker.url != url:
                return
            if (shard in answer["done"]) == (what == "acquire"):
                worker.held.add(shard)
                self._notify()
            if answer["refused"]:
                logger.info("session process %s: %s of %s", name, what, answer["refused"])

    async def _call(
        self, worker: Worker, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float
    ) -> Mapping[str, Any]:
        assert self._client is not None
        headers = {SECRET_HEADER.decode(): self._orders.secret}
        if self._orders.config.token is not None:
            headers["authorization"] = f"Bearer {self._orders.config.token}"
        try:
            async with self._client.request(
                method,
                f"{worker.url}{path}",
                data=None if body is None else orjson.dumps(body),
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=timeout_s),
            ) as answer:
                found = orjson.loads(await answer.read())
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise SessionError(f"session process {worker.name} did not answer: {error!r}.", status=503) from error
        return found if isinstance(found, dict) else {}


async def _stop(worker: Worker) -> None:
    """End a process that serves, politely first."""
    process = worker.process
    if process is None or process.returncode is not None:
        return
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(15):
            await process.wait()
    except TimeoutError:
        await _kill(worker)


async def _kill(worker: Worker) -> None:
    process = worker.process
    if process is not None and process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
