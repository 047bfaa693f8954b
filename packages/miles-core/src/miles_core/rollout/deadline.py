"""Runs other people's code under a deadline that holds even when the code swallows its cancellation."""

import asyncio
import contextlib
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

_log = logging.getLogger(__name__)

GRACE_S = 1.0
"""Time that cancelled code has for its clean-up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the code ended: a value, an error, or late."""

    value: Any = None
    error: BaseException | None = None
    late: bool = False


async def run_until(call: Callable[[], Any], *, timeout_s: float, what: str) -> Outcome:
    """Run `call` for at most `timeout_s` seconds. A coroutine function runs in this loop, a plain function in a thread.

    Code past its deadline is cancelled and left behind when it does not end within a second; a thread cannot be
    stopped and is always left behind. When the caller is cancelled the code is cancelled too.
    """
    body = call() if inspect.iscoroutinefunction(call) else _in_thread(call)
    task = asyncio.ensure_future(_contained(body))
    try:
        done, _ = await asyncio.wait({task}, timeout=timeout_s)
    except asyncio.CancelledError:
        await _stop(task, what)
        raise
    if done:
        return task.result()
    await _stop(task, what)
    return Outcome(late=True)


async def _contained(body: Awaitable[Any]) -> Outcome:
    """The body's end as data; SystemExit too, which would otherwise end the event loop of every rollout."""
    try:
        value = await body
        return Outcome(value=await value if inspect.isawaitable(value) else value)
    except asyncio.CancelledError as error:
        current = asyncio.current_task()
        if current is not None and current.cancelling():
            raise
        return Outcome(error=error)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the code raises is the answer
        return Outcome(error=error)


async def _stop(task: "asyncio.Future[Outcome]", what: str) -> None:
    task.cancel()
    _, pending = await asyncio.wait({task}, timeout=GRACE_S)
    if pending:
        _log.warning("%s ignores its cancellation and is left behind.", what)


async def _in_thread(call: Callable[[], Any]) -> Any:
    """A daemon thread for each call: threads that hang use up no pool and do not keep the process alive."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(value)
        else:
            answer.set_exception(error)

    def run() -> None:
        value: Any = None
        failure: Exception | None = None
        try:
            value = call()
        except SystemExit as error:
            failure = RuntimeError(f"SystemExit({error.code})")
        except Exception as error:  # noqa: BLE001 - handed to the one who waits
            failure = RuntimeError("StopIteration") if isinstance(error, StopIteration) else error
        # The loop may have ended before a thread that was left behind.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, value, failure)

    threading.Thread(target=run, daemon=True, name="miles-agent").start()
    return await answer
