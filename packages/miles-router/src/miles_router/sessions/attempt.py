"""One request on its way to becoming a turn, which several callers may follow."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Self

from miles_core.errors import MilesError, SessionError
from miles_router.sessions.tree import Turn

Delta = Mapping[str, Any]


class Attempt:
    """A generation in flight or done. It outlives the caller that started it, so that a retry can take it over.

    fingerprint: of the whole request. turn_id: what its turn will be called. prompt_tokens: the length of its prompt.
    Each caller joins, and leaves once.
    on_delivery: told when a caller took the recorded answer for the first time (True) or the last left without it.
    """

    def __init__(
        self,
        fingerprint: str,
        turn_id: str,
        *,
        prompt_tokens: int = 0,
        on_delivery: Callable[["Attempt", bool], None] | None = None,
    ) -> None:
        self.fingerprint = fingerprint
        self.turn_id = turn_id
        self._on_delivery = on_delivery
        self.prompt_tokens = prompt_tokens
        self.task: asyncio.Task[None] | None = None
        self.turn: Turn | None = None
        self.error: MilesError | None = None
        self._callers = 0
        self._taken = False
        self._begun = False
        self._deltas: list[Delta] = []
        self._changed = asyncio.Event()

    @classmethod
    def restored(
        cls, fingerprint: str, turn: Turn, *, on_delivery: Callable[["Attempt", bool], None] | None = None
    ) -> Self:
        """The attempt of a turn that comes from a log, where nothing says that a caller took its answer.

        It may be taken over by the same request, and counts as taken in samples unless the log says otherwise.
        """
        attempt = cls(fingerprint, turn.turn_id, prompt_tokens=turn.prompt_tokens, on_delivery=on_delivery)
        attempt.turn = turn
        return attempt

    def restore_delivery(self, *, took: bool) -> None:
        """What the log says of the answer's fate."""
        self._taken = took
        if self.turn is not None:
            self.turn.delivered = took

    @property
    def abandoned(self) -> bool:
        """True when every caller left before it had the answer."""
        return self._callers == 0 and not self._taken

    def join(self) -> None:
        """One more caller waits for the answer."""
        self._callers += 1
        if self.turn is not None:
            self.turn.delivered = True

    def leave(self, *, took: bool) -> None:
        """A caller ends. took: it was there when the answer was complete."""
        self._callers -= 1
        first = took and not self._taken
        self._taken = self._taken or took
        if self.turn is not None:
            if self.abandoned:
                self.turn.delivered = False
            if self._on_delivery is not None and (first or self.abandoned):
                self._on_delivery(self, first)
        if self.done and not self._callers:
            self._deltas.clear()

    @property
    def done(self) -> bool:
        """True once there is a turn or an error."""
        return self.turn is not None or self.error is not None

    def publish(self, deltas: Sequence[Delta]) -> None:
        """Hand a piece of the answer, which may be empty so far, to those who follow."""
        self._begun = True
        self._deltas += deltas
        self._notify()

    def succeed(self, turn: Turn) -> None:
        """The turn is recorded."""
        self.turn = turn
        self._notify()

    def fail(self, error: MilesError) -> None:
        """No turn comes of it."""
        if not self.done:
            self.error = error
            self._notify()

    async def result(self) -> Turn:
        """The recorded turn, or the error raised."""
        while not self.done:
            await self._changed.wait()
        return self._outcome()

    async def started(self) -> None:
        """Return once the engine began to answer; raise when it failed before."""
        while not self.done and not self._begun:
            await self._changed.wait()
        if self.error is not None and not self._begun:
            raise self.error

    async def deltas(self) -> AsyncIterator[Delta]:
        """Every delta from the first on, as they come; raises when the attempt fails on the way."""
        place = 0
        while True:
            while place < len(self._deltas):
                yield self._deltas[place]
                place += 1
            if self.done:
                self._outcome()
                return
            await self._changed.wait()

    @property
    def streamed(self) -> bool:
        """True when it has deltas to follow."""
        return bool(self._deltas)

    def _outcome(self) -> Turn:
        if self.error is not None:
            raise self.error
        if self.turn is None:
            raise SessionError("the attempt ended without a turn.", status=500)
        return self.turn

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
