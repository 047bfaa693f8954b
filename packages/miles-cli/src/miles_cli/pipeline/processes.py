"""The processes of a run: asked for at once, met by name, ended together."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import ray

from miles_cli.pipeline.calls import within
from miles_cli.pipeline.engine_fleet import EngineFleet, Slot
from miles_cli.pipeline.janitor import clean
from miles_cli.pipeline.placement import Place, of_kind, start_actor
from miles_cli.pipeline.process import start_time
from miles_cli.pipeline.run_folder import RunFolder
from miles_cli.pipeline.watch import Watch
from miles_core.errors import MilesError

CLOSE_WAIT_S = 3.0
"""Time for a process to release what it holds before it is killed."""


class Processes:
    """Actors by role. Engines live in `fleet`, because they are replaced when they die; the others are vital.

    start_timeout_s: of each wait while a process comes up. changed: called with role -> process id.
    boot: calls that make an engine serve, given its actor; answers its URL.
    """

    def __init__(
        self,
        places: tuple[Place, ...],
        *,
        folder: RunFolder,
        watch: Watch,
        start_timeout_s: float,
        boot: "Callable[[Processes, Slot], Awaitable[str]]",
        changed: Callable[[dict[str, int]], None],
        note: Callable[[str], None],
    ) -> None:
        self._watch, self._logs = watch, folder.logs
        self._timeout_s, self._boot, self._changed = start_timeout_s, boot, changed
        self._pids: dict[str, int] = {}
        self._children: dict[int, float] = {}
        engines = of_kind(places, "engine")
        # What imports most is asked for first.
        self.fleet = EngineFleet(engines, spawn=self._spawn, boot=self._start_engine, kill=ray.kill, note=note)
        self.actors = {place.role: self._spawn(place) for place in places if place not in engines}
        self.ranks = [self.actors[place.role] for place in of_kind(places, "trainer")]

    async def meet(self, role: str) -> None:
        """Wait for a process to exist; from then on the run ends when it dies."""
        actor = self.actors[role]
        pid = await self._named(f"process {role} to start", actor.pid.remote())
        self._watch.vital(role, pid, actor)
        self._record(role, pid)

    async def call(self, role: str, what: str, method: str, *arguments: Any) -> Any:
        """A call to one process, under the deadline of a start."""
        return await self._named(f"{role} {what}", getattr(self.actors[role], method).remote(*arguments))

    async def call_engine(
        self, slot: Slot, what: str, method: str, *arguments: Any, timeout_s: float | None = None
    ) -> Any:
        """The same for an engine, which may have a longer deadline of its own."""
        call = getattr(slot.actor, method).remote(*arguments)
        return await within(max(timeout_s or 0.0, self._timeout_s), f"{slot.place.role} {what}", call)

    async def close(self) -> None:
        """Let processes that have children end them, then end every process."""
        engines = [slot.actor for slot in self.fleet.slots]
        with_children = [*engines, *(self.actors[role] for role in ("rollout",) if role in self.actors)]
        await asyncio.gather(*(_release(actor) for actor in with_children))
        for actor in (*self.actors.values(), *engines):
            ray.kill(actor)

    def _spawn(self, place: Place) -> Any:
        return start_actor(place, self._logs)

    async def _start_engine(self, slot: Slot) -> tuple[str, int]:
        role = slot.place.role
        pid = await self._named(f"process {role} to start", slot.actor.pid.remote())
        self._record(role, pid)
        orphan = self._pids.pop(f"{role}/server", None)
        if orphan is not None:
            clean({orphan: self._children[orphan]})
        url = await self._boot(self, slot)
        child = await self._named(f"{role} to name its server", slot.actor.child.remote())
        if child is not None:
            self._children[child] = start_time(child) or 0.0
            self._record(f"{role}/server", child)
        return url, pid

    def _record(self, role: str, pid: int) -> None:
        self._pids[role] = pid
        self._changed(dict(self._pids))

    async def _named(self, what: str, work: Awaitable[Any]) -> Any:
        return await within(self._timeout_s, what, work)


async def _release(actor: Any) -> None:
    try:
        await within(CLOSE_WAIT_S, "a process to release what it holds", actor.close.remote())
    except MilesError:
        return  # it is killed next, and its children notice its death
