"""OpenAI's chat completions: what a request may hold, and the shapes of answers and stream chunks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import xxhash

from miles_core.errors import RecordError, SessionError
from miles_core.messages import check_messages, text_of
from miles_router.sessions.request import TurnRequest, check_tools

WITHOUT_EFFECT = frozenset(
    {"model", "user", "metadata", "store", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}
)
"""Accepted and ignored: they change no token."""

ONLY_VALUES: Mapping[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "top_logprobs": (None, 0),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "min_p": (None, 0),
    "logit_bias": (None, {}),
    "response_format": (None, {"type": "text"}),
    "tool_choice": (None, "auto", "none"),
    "parallel_tool_calls": (None, True),
    "service_tier": (None, "auto", "default"),
    "modalities": (None, ["text"]),
    "stop": (None, [], ""),
    "echo": (None, False),
    "functions": (None,),
    "function_call": (None,),
}
"""Fields whose other values would change what is sampled in a way that training does not see, or that are not built."""

HANDLED = frozenset(
    {
        "messages", "tools", "temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens", "seed", "stream",
        "stream_options", "logprobs",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A turn's request, and how its answer is to be written."""

    turn: TurnRequest
    include_usage: bool
    logprobs: bool


def parse_request(body: bytes) -> ChatRequest:
    """The request in a body; SessionError 400 names the field, what was expected and what was found."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _bad(f"expected a JSON object, found a body that does not parse: {error}.") from None
    if not isinstance(fields, dict):
        raise _bad(f"expected a JSON object, found {type(fields).__name__}.")
    _check_known(fields)
    options = fields.get("stream_options")
    if options is not None and (
        not isinstance(options, dict) or set(options) - {"include_usage", "include_obfuscation"}
    ):
        raise _bad(f"stream_options: expected an object with include_usage, found {options!r}.")
    turn = TurnRequest(
        messages=_messages(fields.get("messages")),
        tools=_tools(fields.get("tools"), fields.get("tool_choice")),
        temperature=_number(fields, "temperature", least=0.0, most=100.0),
        top_p=_number(fields, "top_p", least=0.0, most=1.0),
        top_k=_integer(fields, "top_k", least=-1),
        max_tokens=_max_tokens(fields),
        seed=_integer(fields, "seed", least=-(2**63)),
        stream=_flag(fields, "stream"),
        fingerprint=xxhash.xxh3_128_hexdigest(orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)),
    )
    return ChatRequest(
        turn=turn,
        include_usage=isinstance(options, dict) and _flag(options, "include_usage"),
        logprobs=_flag(fields, "logprobs"),
    )


def _check_known(fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        if name in HANDLED or name in WITHOUT_EFFECT:
            continue
        if name not in ONLY_VALUES:
            raise _bad(f"{name}: this field is not known here; remove it.")
        if not any(_same(value, allowed) for allowed in ONLY_VALUES[name]):
            allowed = " or ".join(orjson.dumps(v).decode() for v in ONLY_VALUES[name] if v is not None) or "null"
            raise _bad(f"{name}: only {allowed} is supported in a session, found {value!r}.")


def _same(value: object, allowed: object) -> bool:
    # True equals 1 in Python, not in JSON.
    return value == allowed and isinstance(value, bool) == isinstance(allowed, bool)


def _messages(messages: object) -> tuple[Mapping[str, Any], ...]:
    try:
        checked = check_messages(messages)
        for message in checked:
            text_of(message.get("content"))
    except RecordError as error:
        raise _bad(f"messages: {error}") from None
    if not checked:
        raise _bad("messages: expected at least one message, found none.")
    return tuple(checked)


def _tools(tools: object, choice: object) -> tuple[Mapping[str, Any], ...] | None:
    if choice == "none":
        return ()
    return None if tools is None else check_tools(tools)


def _max_tokens(fields: Mapping[str, Any]) -> int | None:
    old, new = (_integer(fields, name, least=1) for name in ("max_tokens", "max_completion_tokens"))
    if old is not None and new is not None and old != new:
        raise _bad(f"max_tokens is {old} and max_completion_tokens is {new}; give one of them.")
    return new if old is None else old


def _number(fields: Mapping[str, Any], name: str, *, least: float, most: float) -> float | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise _bad(f"{name}: expected a number from {least:g} to {most:g}, found {value!r}.")
    return float(value)


def _integer(fields: Mapping[str, Any], name: str, *, least: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise _bad(f"{name}: expected an integer of at least {least}, found {value!r}.")
    return value


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise _bad(f"{name}: expected true or false, found {value!r}.")
    return bool(value)


def _bad(message: str) -> SessionError:
    return SessionError(message, status=400)
