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
    """Run a coroutine; Ctrl-C and SIGTERM cancel it, and are raised once it has ended."""
    terminated = False

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None

        def stop() -> None:
            nonlocal terminated
            terminated = True
            task.cancel()

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
        await work

    try:
        asyncio.run(main())
    except asyncio.CancelledError:
        if not terminated:
            raise
        raise Terminated from None
