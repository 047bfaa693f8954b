"""Waiting for another process: a deadline that says what was waited for, and failures as sentences."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeVar

from ray.exceptions import RayActorError, RayError, RayTaskError

from miles_core.errors import DeadlineError, MilesError, TrainError

T = TypeVar("T")


async def within(seconds: float, what: str, work: Awaitable[T]) -> T:
    """The result, or DeadlineError naming what was waited for; an error of the other process becomes a MilesError."""
    deadline = asyncio.timeout(seconds)
    try:
        async with deadline:
            return await work
    except TimeoutError as error:
        if deadline.expired():
            raise DeadlineError(
                f"waited {seconds:g} s for {what}; raise the deadline or look into the run's logs."
            ) from error
        raise
    except RayTaskError as error:
        raise _explained(error, what) from error
    except RayActorError as error:
        raise ProcessLostError(f"the process of {what} ended; its log is in the run's logs/.") from error
    except RayError as error:
        raise MilesError(f"{what}: {_first_line(error)}") from error


class ProcessLostError(TrainError):
    """A process of the run ended before the run did."""


def last_line(log: Path) -> str:
    """The last line of a process's log that says something, for an error message."""
    if not log.is_file():
        return ""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "")


def _explained(error: RayTaskError, what: str) -> MilesError:
    cause: Any = error.cause
    if isinstance(cause, MilesError):
        return cause
    return MilesError(f"{what} failed: {type(cause).__name__}: {_first_line(cause)}")


def _first_line(error: object) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), "no reason given")
