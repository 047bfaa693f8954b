"""A message as it comes: typed events."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import orjson

from miles_core.errors import MilesError
from miles_router.sessions.attempt import Attempt
from miles_router.sessions.dialects.anthropic.answer import block, ending, head, signature, usage
from miles_router.sessions.dialects.anthropic.errors import anthropic_error
from miles_router.sessions.dialects.dialect import AnswerFacts, Failure
from miles_router.sessions.dialects.openai_errors import status_of
from miles_router.sessions.dialects.parts import Closed, Grew, Opened, Part, PartBuilder, Step, follow
from miles_router.sessions.dialects.sse import typed_event

PING = typed_event({"type": "ping"})


async def stream(attempt: Attempt, facts: AnswerFacts, *, thinking: bool) -> AsyncIterator[bytes]:
    """The events of one message; the last is `message_stop`, or `error`."""
    counts = {"input_tokens": attempt.prompt_tokens, "output_tokens": 0}
    begun = {**head(attempt.turn_id, facts), "usage": counts}
    yield typed_event({"type": "message_start", "message": begun})
    yield PING
    parts = PartBuilder(with_reasoning=thinking)
    try:
        async for delta in follow(attempt):
            for step in parts.feed(delta):
                for event in _events(step):
                    yield event
        turn = await attempt.result()
    except MilesError as error:
        yield typed_event(anthropic_error(Failure(status=status_of(error), message=str(error))))
        return
    for step in parts.finish():
        for event in _events(step):
            yield event
    yield typed_event({"type": "message_delta", "delta": ending(turn), "usage": usage(turn)})
    yield typed_event({"type": "message_stop"})


def _events(step: Step) -> Iterator[bytes]:
    part = step.part
    match step:
        case Opened():
            shown = block(part, empty=True)
            yield typed_event({"type": "content_block_start", "index": part.number, "content_block": shown})
        case Grew() if part.kind == "call":
            pass  # shown once it is complete, when it is known to be JSON
        case Grew(text=text):
            yield _delta(part, _grown(part, text))
        case Closed():
            if part.kind == "reasoning":
                yield _delta(part, {"type": "signature_delta", "signature": signature(part)})
            if part.kind == "call":
                given = orjson.dumps(block(part)["input"]).decode()
                yield _delta(part, {"type": "input_json_delta", "partial_json": given})
            yield typed_event({"type": "content_block_stop", "index": part.number})


def _grown(part: Part, text: str) -> dict[str, Any]:
    if part.kind == "reasoning":
        return {"type": "thinking_delta", "thinking": text}
    return {"type": "text_delta", "text": text}


def _delta(part: Part, delta: dict[str, Any]) -> bytes:
    return typed_event({"type": "content_block_delta", "index": part.number, "delta": delta})
