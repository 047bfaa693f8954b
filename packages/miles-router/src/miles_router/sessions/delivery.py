"""Taking an attempt's answer to one caller, and noticing when the caller leaves before it has it."""

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import orjson
from fastapi import Request
from fastapi.responses import Response

from miles_core.errors import SessionError
from miles_router.answers import Receive, Scope, Send
from miles_router.sessions.attempt import Attempt
from miles_router.sessions.dialects.dialect import AnswerFacts, Asked


class CallerLeftError(SessionError):
    """Nobody is there to take the answer; the attempt goes on for a retry to find."""


async def answer(
    asked: Asked, attempt: Attempt, facts: AnswerFacts, connection: Request, *, ping: bytes, ping_s: float
) -> Response:
    """The answer of an attempt that the caller joined.

    A stream starts when the engine's does, so that a failure before has its status; after `ping_s` of silence it starts
    all the same, and each further `ping_s` of silence is broken by a ping.
    """
    took = streams = False
    try:
        if asked.turn.stream:
            await _unless_left(_begun(attempt, ping_s), connection.receive)
            streams = True
            return EventStream(attempt, asked.events(attempt, facts), ping=ping, ping_s=ping_s)
        turn = await _unless_left(attempt.result(), connection.receive)
        took = True
    finally:
        if not streams:
            attempt.leave(took=took)
    return Response(orjson.dumps(asked.whole(turn, facts)), media_type="application/json")


class EventStream(Response):
    """Server-sent events to one caller of an attempt, who leaves it at the end or when the connection closes."""

    def __init__(self, attempt: Attempt, events: AsyncIterator[bytes], *, ping: bytes, ping_s: float) -> None:
        super().__init__(media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        del self.headers["content-length"]
        self._attempt = attempt
        self._events = events
        self._took = False
        self._ping = ping
        self._ping_s = ping_s
        self._sent_at = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI answer."""
        pinging: asyncio.Task[None] | None = None
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            pinging = asyncio.create_task(self._keep_open(send))
            await _unless_left(self._send(send, pinging), receive)
        except CallerLeftError:
            pass
        finally:
            if pinging is not None:
                pinging.cancel()
            self._attempt.leave(took=self._took)

    async def _send(self, send: Send, pinging: "asyncio.Task[None]") -> None:
        async for event in self._events:
            self._sent_at = time.monotonic()
            await send({"type": "http.response.body", "body": event, "more_body": True})
            # From the last word on the caller has the whole answer, even if it does not wait for the stream to end.
            self._took = self._attempt.turn is not None
        pinging.cancel()
        await asyncio.wait({pinging})
        await send({"type": "http.response.body", "body": b""})

    async def _keep_open(self, send: Send) -> None:
        self._sent_at = time.monotonic()
        while True:
            await asyncio.sleep(max(0.001, self._sent_at + self._ping_s - time.monotonic()))
            if time.monotonic() - self._sent_at >= self._ping_s:
                self._sent_at = time.monotonic()
                await send({"type": "http.response.body", "body": self._ping, "more_body": True})


async def _begun(attempt: Attempt, within_s: float) -> None:
    """Return once the engine began to answer, or after `within_s`; raise when the attempt failed before."""
    waiting = asyncio.ensure_future(attempt.started())
    try:
        done, _ = await asyncio.wait({waiting}, timeout=within_s)
        if done:
            waiting.result()
    finally:
        waiting.cancel()


async def _unless_left(answer: Coroutine[Any, Any, Any], receive: Receive) -> Any:
    """Await the answer; CallerLeftError when the connection closes first."""
    waiting = asyncio.ensure_future(answer)
    leaving = asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            raise CallerLeftError("the caller left before its answer was there.", status=499)
        return waiting.result()
    finally:
        waiting.cancel()
        leaving.cancel()
        await asyncio.wait({waiting, leaving})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
