"""Running things at once, with plain errors."""

import asyncio
from collections.abc import Awaitable
from typing import Any


async def together(*work: Awaitable[Any]) -> list[Any]:
    """All results in order. The first error cancels the rest and is raised as it is, once they have stopped."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        failed = next((task for task in tasks if task.done() and not task.cancelled() and task.exception()), None)
        if failed is not None:
            failed.result()
        return [await task for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
