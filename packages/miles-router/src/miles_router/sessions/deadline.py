"""Running code of the user's in a thread of its own, for so long and no longer."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from miles_core.errors import DeadlineError

T = TypeVar("T")


async def run_with_deadline(work: Callable[[], T], *, timeout_s: float, what: str) -> T:
    """What `work` returns or raises; DeadlineError when it takes longer.

    A thread cannot be ended: one that runs past its deadline goes on by itself, and does not keep the process alive.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to the caller
            failure = RuntimeError("StopIteration") if isinstance(error, StopIteration) else error
        try:
            loop.call_soon_threadsafe(settle, result, failure)
        except RuntimeError:  # the loop has ended; nobody waits any more
            return

    threading.Thread(target=run, name=f"deadline-{what}", daemon=True).start()
    try:
        return await asyncio.wait_for(done, timeout_s)
    except TimeoutError:
        raise DeadlineError(f"waited {timeout_s:g} s for {what}.") from None
