"""Supervision: who died, and what that means for the run."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from ray.exceptions import RayError

from miles_cli.pipeline.calls import ProcessLostError, last_line
from miles_core.errors import MilesError

T = TypeVar("T")
Lost = Callable[[str], Awaitable[None]]


class Watch:
    """Notices the death of processes. One that the run cannot do without ends it with one sentence."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._tasks: set[asyncio.Task[None]] = set()
        self._fatal: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._closing = False

    def vital(self, role: str, pid: int, actor: Any) -> None:
        """The run ends when this process does."""

        async def lost() -> None:
            seen = last_line(self._logs / f"{role}.log")
            more = f" Its log ends with: {seen}" if seen else ""
            raise ProcessLostError(
                f"{role} (process {pid}) ended before the run did; start again with --resume to continue from the "
                f"last checkpoint.{more}"
            )

        self._spawn(self._follow(actor, lost))

    def replaceable(self, actor: Any, replace: Callable[[], Awaitable[None]]) -> None:
        """`replace` is awaited when this process dies; what it raises ends the run."""
        self._spawn(self._follow(actor, replace))

    async def guard(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, cancelled and replaced by the sentence of the first vital process that dies."""
        task = asyncio.create_task(work)
        try:
            await asyncio.wait([task, self._fatal], return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]
            if self._fatal.done():
                self._fatal.result()
            return await self._explained(task)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        """Stop watching; deaths from now on are part of the shutdown."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._fatal.done() and not self._fatal.cancelled():
            self._fatal.exception()
        self._fatal.cancel()

    async def _explained(self, task: "asyncio.Task[T]") -> T:
        try:
            return await task
        except ProcessLostError:
            # The call that was under way fails a moment before the watch has its own, better sentence.
            await asyncio.wait({self._fatal}, timeout=1.0)
            if self._fatal.done():
                self._fatal.result()
            raise

    async def _follow(self, actor: Any, lost: Callable[[], Awaitable[None]]) -> None:
        try:
            await actor.live.remote()
        except RayError:
            if self._closing:
                return
            try:
                await lost()
            except MilesError as error:
                if not self._fatal.done():
                    self._fatal.set_exception(error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
