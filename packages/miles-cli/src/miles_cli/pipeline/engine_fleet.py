"""The engines of a run: started together, replaced one by one when they die."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from miles_cli.pipeline.placement import Place
from miles_cli.pipeline.router_client import RouterClient
from miles_core.errors import EngineError, MilesError

MAX_RESTARTS = 5
"""Restarts of one engine in a run; one more death ends the run."""

Endpoint = tuple[str, str | None]
"""URL and bearer token of an engine."""


@dataclass(slots=True, eq=False)
class Slot:
    """One engine's place: who stands there now. url is empty while it is being replaced."""

    place: Place
    actor: Any = None
    url: str = ""
    pid: int = 0
    restarts: int = 0


class EngineFleet:
    """Starts engines and replaces dead ones.

    spawn: a place -> a fresh actor; boot: a slot with a fresh actor -> (url, pid) of a serving engine, under a
    deadline. note: tells the user.
    """

    def __init__(
        self,
        places: Sequence[Place],
        *,
        spawn: Callable[[Place], Any],
        boot: Callable[[Slot], Awaitable[tuple[str, int]]],
        kill: Callable[[Any], None],
        note: Callable[[str], None],
        token: str | None = None,
    ) -> None:
        self.slots = [Slot(place=place, actor=spawn(place)) for place in places]
        self._spawn, self._boot, self._kill, self._note = spawn, boot, kill, note
        self._token = token

    @property
    def endpoints(self) -> list[Endpoint]:
        """Engines that serve."""
        return [(slot.url, self._token) for slot in self.slots if slot.url]

    async def start(self) -> None:
        """Boot every engine; returns when all serve."""
        await asyncio.gather(*(self._start(slot) for slot in self.slots))

    async def replace(
        self, slot: Slot, router: RouterClient, catch_up: Callable[[], Awaitable[None]], follow: Callable[[Slot], None]
    ) -> None:
        """Put a fresh engine where one died: out of the router, started, caught up with the weights, back in.

        Raises EngineError when an engine dies again and again.
        """
        role, url, pid = slot.place.role, slot.url, slot.pid
        slot.url = ""
        if url:  # it had served
            await router.quarantine(url, "its process ended")
            await router.remove_worker(url)
        slot.restarts += 1
        if slot.restarts > MAX_RESTARTS:
            raise EngineError(f"{role} ended {slot.restarts} times; its log is in the run's logs/.")
        self._note(f"{role} (process {pid}) ended; starting another one")
        slot.actor = self._spawn(slot.place)
        follow(slot)
        try:
            await self._start(slot)
        except MilesError as error:
            # Its end is followed like any other, so the next attempt counts against the same limit.
            self._note(f"{role} did not start again: {error}")
            self._kill(slot.actor)
            return
        await catch_up()
        await router.add_worker(slot.url)
        self._note(f"{role} is back as process {slot.pid}")

    async def _start(self, slot: Slot) -> None:
        slot.url, slot.pid = await self._boot(slot)
