"""Signals as exceptions that unwind everything."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any


class Terminated(BaseException):
    """SIGTERM arrived: unwinds like Ctrl-C, so that everything is shut down."""


def terminate(_signal: int, _frame: object) -> None:
    """A signal handler for code outside an event loop."""
    raise Terminated


def run_interruptible(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine; Ctrl-C and SIGTERM cancel it, and are raised once it has ended.

    The first signal decides. Further ones, also those that arrive while the caller shuts down, change nothing: all of
    that has deadlines of its own, and a shutdown that is cut short would leave work to the janitor.
    """
    received: list[int] = []
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = []

    def stop(sign: int, _frame: object) -> None:
        received.append(sign)
        if running and len(received) == 1:
            loop, task = running[0]
            loop.call_soon_threadsafe(task.cancel)

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        running.append((asyncio.get_running_loop(), task))
        if received:
            raise asyncio.CancelledError
        await work

    # Plain handlers rather than those of the event loop: they stay in place without a gap after the loop is closed.
    before = {sign: signal.signal(sign, stop) for sign in (signal.SIGINT, signal.SIGTERM)}
    try:
        asyncio.run(main())
    except asyncio.CancelledError:
        if not received:
            raise
        raise (KeyboardInterrupt if received[0] == signal.SIGINT else Terminated) from None
    finally:
        work.close()
        if not received:
            for sign, handler in before.items():
                signal.signal(sign, handler)
