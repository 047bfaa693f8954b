"""Taking an attempt's answer to one caller, and noticing when the caller leaves before it has it."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import orjson
from fastapi import Request
from fastapi.responses import Response

from miles_core.errors import SessionError
from miles_router.answers import Receive, Scope, Send
from miles_router.sessions import chat_answers
from miles_router.sessions.attempt import Attempt
from miles_router.sessions.openai_chat import ChatRequest
from miles_router.sessions.service import SessionService


class CallerLeftError(SessionError):
    """Nobody is there to take the answer; the attempt goes on for a retry to find."""


async def answer_chat(
    service: SessionService, session_id: str, request: ChatRequest, attempt: Attempt, connection: Request
) -> Response:
    """The answer of an attempt that the caller joined: a completion, or a stream that starts when the engine's does."""
    took = streams = False
    try:
        if request.turn.stream:
            await _unless_left(attempt.started(), connection.receive)
            streams = True
            return EventStream(attempt, _events(service, session_id, request, attempt))
        turn = await _unless_left(attempt.result(), connection.receive)
        took = True
    finally:
        if not streams:
            attempt.leave(took=took)
    answer = chat_answers.completion(
        turn, service.chat, model=service.config.model_name, session_id=session_id, logprobs=request.logprobs
    )
    return Response(orjson.dumps(answer), media_type="application/json")


class EventStream(Response):
    """Server-sent events to one caller of an attempt, who leaves it at the end or when the connection closes."""

    def __init__(self, attempt: Attempt, events: AsyncIterator[bytes]) -> None:
        super().__init__(media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        del self.headers["content-length"]
        self._attempt = attempt
        self._events = events
        self._took = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI answer."""
        try:
            await _unless_left(self._send(send), receive)
        except CallerLeftError:
            pass
        finally:
            self._attempt.leave(took=self._took)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for event in self._events:
            await send({"type": "http.response.body", "body": event, "more_body": True})
            # From the last word on the caller has the whole answer, even if it does not wait for the stream to end.
            self._took = self._attempt.turn is not None
        await send({"type": "http.response.body", "body": b""})


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


def _events(service: SessionService, session_id: str, request: ChatRequest, attempt: Attempt) -> AsyncIterator[bytes]:
    return chat_answers.stream(
        attempt,
        service.chat,
        model=service.config.model_name,
        session_id=session_id,
        include_usage=request.include_usage,
        logprobs=request.logprobs,
    )
