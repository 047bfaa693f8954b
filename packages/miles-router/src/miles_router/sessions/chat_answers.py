"""A recorded turn in OpenAI's shapes: a whole completion, or the chunks of a stream."""

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import orjson

from miles_core.errors import MilesError
from miles_router.answers import error_body, error_type
from miles_router.sessions.attempt import Attempt
from miles_router.sessions.tree import Turn
from miles_tito import ChatTokenizer


def completion(turn: Turn, chat: ChatTokenizer, *, model: str, session_id: str, logprobs: bool) -> Mapping[str, Any]:
    """A `chat.completion` object."""
    choice: dict[str, Any] = {
        "index": 0,
        "message": {**turn.message, "content": _content(turn.message)},
        "finish_reason": finish_reason(turn),
        "logprobs": None,
    }
    if logprobs and turn.generation is not None:
        choice["logprobs"] = {"content": token_logprobs(chat, turn.generation.ids, turn.generation.logprobs)}
    return {
        **_head("chat.completion", f"chatcmpl-{session_id}-{turn.turn_id}", model),
        "choices": [choice],
        "usage": usage(turn),
    }


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


async def stream(
    attempt: Attempt,
    chat: ChatTokenizer,
    *,
    model: str,
    session_id: str,
    include_usage: bool,
    logprobs: bool,
) -> AsyncIterator[bytes]:
    """Server-sent events of the answer as it comes; a failure on the way is an error event, and no `[DONE]` follows."""
    head = _head("chat.completion.chunk", f"chatcmpl-{session_id}-{attempt.turn_id}", model)
    yield _event(head, {"role": "assistant", "content": ""})
    try:
        async for delta in attempt.deltas():
            yield _event(head, delta)
        turn = await attempt.result()
    except MilesError as error:
        status = getattr(error, "status", None) or 500
        yield _data(error_body(str(error), kind=error_type(status), code=str(status)))
        return
    if not attempt.streamed:
        for delta in message_deltas(turn.message):
            yield _event(head, delta)
    last: dict[str, Any] = {}
    if logprobs and turn.generation is not None:
        last = {"content": token_logprobs(chat, turn.generation.ids, turn.generation.logprobs)}
    yield _event(head, {}, finish=finish_reason(turn), logprobs=last or None)
    if include_usage:
        yield _data({**head, "choices": [], "usage": usage(turn)})
    yield b"data: [DONE]\n\n"


def message_deltas(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A whole message as deltas, for an answer that was not sampled as a stream."""
    deltas: list[Mapping[str, Any]] = [
        {name: message[name]} for name in ("reasoning_content", "content") if message.get(name)
    ]
    for index, call in enumerate(message.get("tool_calls") or ()):
        deltas.append({"tool_calls": [{"index": index, **call}]})
    return deltas


def _content(message: Mapping[str, Any]) -> str | None:
    # Null beside tool calls is what OpenAI's clients expect.
    content: str | None = message.get("content")
    return content or (None if message.get("tool_calls") else "")


def _head(kind: str, answer_id: str, model: str) -> dict[str, Any]:
    return {"id": answer_id, "object": kind, "created": int(time.time()), "model": model}


def _event(
    head: Mapping[str, Any],
    delta: Mapping[str, Any],
    *,
    finish: str | None = None,
    logprobs: Mapping[str, Any] | None = None,
) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
    return _data({**head, "choices": [choice]})


def _data(value: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"
