"""Back-off with a deadline."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from miles_core.errors import DeadlineError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Waits between attempts: `first_s`, then `factor` times longer each, up to `longest_s`; `attempts` in all."""

    first_s: float = 0.1
    factor: float = 2.0
    longest_s: float = 5.0
    attempts: int = 5

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.first_s < 0 or self.factor < 1 or self.longest_s < self.first_s:
            raise ValueError(f"expected at least one attempt and waits that grow, found {self}.")

    def waits(self) -> Iterator[float]:
        """Seconds to wait after the first, second, ... failed attempt; one fewer than there are attempts."""
        wait = self.first_s
        for _ in range(self.attempts - 1):
            yield min(wait, self.longest_s)
            wait *= self.factor


async def retry(
    call: Callable[[], Awaitable[T]],
    *,
    what: str,
    deadline_s: float,
    again: Callable[[Exception], bool],
    backoff: Backoff | None = None,
) -> T:
    """The first success of `call`. An error for which `again` says no, or the last one, is raised as it is.

    The deadline bounds calls and waits together: DeadlineError naming `what` and the last failure.
    """
    last: Exception | None = None
    try:
        async with asyncio.timeout(deadline_s) as scope:
            for wait in (backoff or Backoff()).waits():
                try:
                    return await call()
                except Exception as error:
                    if not again(error):
                        raise
                    last = error
                await asyncio.sleep(wait)
            return await call()
    except TimeoutError:
        if not scope.expired():
            raise
        cause = f"; the last failure was {type(last).__name__}: {last}" if last else ""
        raise DeadlineError(f"{what} did not succeed within {deadline_s:g} s{cause}.") from None
