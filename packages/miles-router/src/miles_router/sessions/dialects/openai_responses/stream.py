"""A response as it comes: typed events, numbered, in the order that the standard gives them."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

from miles_core.errors import MilesError
from miles_router.sessions.attempt import Attempt
from miles_router.sessions.dialects.dialect import AnswerFacts
from miles_router.sessions.dialects.openai_errors import status_of
from miles_router.sessions.dialects.openai_responses.answer import Names, head, item, response, text_part
from miles_router.sessions.dialects.parts import Closed, Grew, Opened, Part, PartBuilder, Step, follow
from miles_router.sessions.dialects.sse import typed_event
from miles_router.sessions.request import TurnRequest


async def stream(request: TurnRequest, attempt: Attempt, facts: AnswerFacts) -> AsyncIterator[bytes]:
    """The events of one response; the last is `response.completed`, `.incomplete` or `.failed`."""
    names = Names(facts.session.session_id, attempt.turn_id)
    tools = request.tools if request.tools is not None else facts.session.spec.tools or ()
    begun = head(names, facts, request.notes, tools)
    if request.notes["instructions"]:
        begun["instructions"] = request.messages[0]["content"]
    events = _Events(names)
    for kind in ("response.created", "response.in_progress"):
        yield events.event(kind, response=begun)
    parts = PartBuilder()
    try:
        async for delta in follow(attempt):
            for step in parts.feed(delta):
                for event in events.of(step):
                    yield event
        turn = await attempt.result()
    except MilesError as error:
        code = "rate_limit_exceeded" if status_of(error) == 429 else "server_error"
        failed = {**begun, "status": "failed", "error": {"code": code, "message": str(error)}}
        yield events.event("response.failed", response=failed)
        return
    for step in parts.finish():
        for event in events.of(step):
            yield event
    whole = response(turn, facts, output=[item(part, names, done=True) for part in parts.parts])
    yield events.event(f"response.{whole['status']}", response=whole)


class _Events:
    """Numbers events and words the steps of parts as events."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._number = 0

    def event(self, kind: str, **fields: Any) -> bytes:
        """The next event."""
        number, self._number = self._number, self._number + 1
        return typed_event({"type": kind, "sequence_number": number, **fields})

    def of(self, step: Step) -> Iterator[bytes]:
        """The events of one step."""
        part = step.part
        match step:
            case Opened():
                yield self._item("added", part, done=False)
                if part.kind != "call":
                    yield self._content("response.content_part.added", part, part=text_part(part, empty=True))
            case Grew(text=text) if part.kind == "call":
                yield self._at("response.function_call_arguments.delta", part, delta=text)
            case Grew(text=text):
                yield self._content(f"{_text_event(part)}.delta", part, delta=text, **_logprobs(part))
            case Closed():
                yield from self._closed(part)

    def _closed(self, part: Part) -> Iterator[bytes]:
        if part.kind == "call":
            yield self._at("response.function_call_arguments.done", part, name=part.name, arguments=part.text)
        else:
            yield self._content(f"{_text_event(part)}.done", part, text=part.text, **_logprobs(part))
            yield self._content("response.content_part.done", part, part=text_part(part))
        yield self._item("done", part, done=True)

    def _item(self, kind: str, part: Part, *, done: bool) -> bytes:
        found = item(part, self._names, done=done)
        return self.event(f"response.output_item.{kind}", output_index=part.number, item=found)

    def _at(self, kind: str, part: Part, /, **fields: Any) -> bytes:
        return self.event(kind, item_id=self._names.item(part), output_index=part.number, **fields)

    def _content(self, kind: str, part: Part, /, **fields: Any) -> bytes:
        return self._at(kind, part, content_index=0, **fields)


def _text_event(part: Part) -> str:
    return "response.reasoning_text" if part.kind == "reasoning" else "response.output_text"


def _logprobs(part: Part) -> dict[str, Any]:
    return {} if part.kind == "reasoning" else {"logprobs": []}
