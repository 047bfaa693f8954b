"""A recorded turn in OpenAI's chat shapes: a whole completion, or the chunks of a stream."""

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from miles_core.errors import MilesError
from miles_router.sessions.attempt import Attempt
from miles_router.sessions.dialects.dialect import AnswerFacts, Failure
from miles_router.sessions.dialects.openai_errors import openai_error, status_of
from miles_router.sessions.dialects.parts import follow
from miles_router.sessions.dialects.sse import data_event
from miles_router.sessions.tree import Turn
from miles_tito import ChatTokenizer


def completion(turn: Turn, facts: AnswerFacts, *, logprobs: bool) -> Mapping[str, Any]:
    """A `chat.completion` object."""
    choice: dict[str, Any] = {
        "index": 0,
        "message": {**turn.message, "content": _content(turn.message)},
        "finish_reason": finish_reason(turn),
        "logprobs": _logprobs(turn, facts.chat) if logprobs else None,
    }
    return {**_head("chat.completion", turn.turn_id, facts), "choices": [choice], "usage": usage(turn)}


async def stream(attempt: Attempt, facts: AnswerFacts, *, include_usage: bool, logprobs: bool) -> AsyncIterator[bytes]:
    """Chunks of the answer as it comes; a failure on the way is an error event, and no `[DONE]` follows."""
    head = _head("chat.completion.chunk", attempt.turn_id, facts)
    yield _chunk(head, {"role": "assistant", "content": ""})
    try:
        async for delta in follow(attempt):
            yield _chunk(head, delta)
        turn = await attempt.result()
    except MilesError as error:
        yield data_event(openai_error(Failure(status=status_of(error), message=str(error))))
        return
    entries = _logprobs(turn, facts.chat) if logprobs else None
    yield _chunk(head, {}, finish=finish_reason(turn), logprobs=entries)
    if include_usage:
        yield data_event({**head, "choices": [], "usage": usage(turn)})
    yield b"data: [DONE]\n\n"


def usage(turn: Turn) -> Mapping[str, Any]:
    """Token counts of the turn."""
    generation = turn.generation
    sampled = 0 if generation is None else len(generation.ids)
    return {
        "prompt_tokens": turn.prompt_tokens,
        "completion_tokens": sampled,
        "total_tokens": turn.prompt_tokens + sampled,
        "prompt_tokens_details": {"cached_tokens": 0 if generation is None else generation.cached_tokens},
    }


def finish_reason(turn: Turn) -> str:
    """`length`, `tool_calls` or `stop`."""
    if turn.finish == "length":
        return "length"
    return "tool_calls" if turn.message.get("tool_calls") else "stop"


def token_logprobs(chat: ChatTokenizer, ids: Sequence[int], logprobs: Sequence[float]) -> list[Mapping[str, Any]]:
    """OpenAI's entry for each sampled token."""
    entries: list[Mapping[str, Any]] = []
    for token, logprob in zip(ids, logprobs, strict=True):
        text = chat.vocabulary.decode([token])
        entries.append({"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []})
    return entries


def _logprobs(turn: Turn, chat: ChatTokenizer) -> Mapping[str, Any] | None:
    if turn.generation is None:
        return None
    return {"content": token_logprobs(chat, turn.generation.ids, turn.generation.logprobs)}


def _content(message: Mapping[str, Any]) -> str | None:
    # Null beside tool calls is what OpenAI's clients expect.
    content: str | None = message.get("content")
    return content or (None if message.get("tool_calls") else "")


def _head(kind: str, turn_id: str, facts: AnswerFacts) -> dict[str, Any]:
    identity = f"chatcmpl-{facts.session.session_id}-{turn_id}"
    return {"id": identity, "object": kind, "created": int(time.time()), "model": facts.model}


def _chunk(
    head: Mapping[str, Any],
    delta: Mapping[str, Any],
    *,
    finish: str | None = None,
    logprobs: Mapping[str, Any] | None = None,
) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
    return data_event({**head, "choices": [choice]})
