"""One request for a turn, whatever dialect it came in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from miles_router.sessions.dialects.fields import FieldError, brief


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """A checked request. None means the client left it open.

    messages and tools are in OpenAI's chat shapes. tools: None takes the session's own, () none at all. stream: the
    engine is asked for pieces. stop: texts that end the answer; the one found is no part of the message, its tokens are
    kept. fingerprint: the same for a retry that differs in bytes only. dialect and notes are
    kept with the turn: notes are JSON values that the dialect needs when a later request refers to it.
    """

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    max_tokens: int | None
    seed: int | None
    stream: bool
    fingerprint: str
    stop: tuple[str, ...] = ()
    dialect: str = "openai_chat"
    notes: Mapping[str, Any] = field(default_factory=dict)


MAX_STOPS = 16
"""Most stop texts of one request."""


def check_stop(stop: object, *, name: str = "stop") -> tuple[str, ...]:
    """Stop texts from a string, a list of strings or None; FieldError otherwise."""
    texts = [stop] if isinstance(stop, str) else stop
    if stop is None or stop == "":
        return ()
    if not isinstance(texts, list) or len(texts) > MAX_STOPS or not all(_is_text(text) for text in texts):
        expected = f"a text or a list of at most {MAX_STOPS} texts that are not empty"
        raise FieldError(name, f"expected {expected}, found {brief(stop)}.")
    return tuple(dict.fromkeys(texts))


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def tools_key(tools: Sequence[Mapping[str, Any]]) -> str:
    """One text per meaning: field order does not matter."""
    return orjson.dumps(list(tools), option=orjson.OPT_SORT_KEYS).decode()


def check_tools(tools: object) -> tuple[Mapping[str, Any], ...]:
    """Tool schemas in OpenAI's chat shape; FieldError otherwise."""
    if not isinstance(tools, list | tuple):
        raise FieldError("tools", f"expected a list, found {brief(tools)}.")
    return tuple(_tool(tool, place) for place, tool in enumerate(tools))


def _tool(tool: Any, place: int) -> Mapping[str, Any]:
    """The schema without what a template must not see: absent values, and `strict`, which constrains no token here."""
    function = tool.get("function") if isinstance(tool, Mapping) and tool.get("type") == "function" else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise FieldError(
            f"tools.{place}", f'expected {{"type": "function", "function": {{"name": ...}}}}, found {brief(tool)}.'
        )
    description, parameters = function.get("description"), function.get("parameters")
    if description is not None and not isinstance(description, str):
        raise FieldError(f"tools.{place}.function.description", f"expected a text, found {brief(description)}.")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise FieldError(f"tools.{place}.function.parameters", f"expected a JSON schema, found {brief(parameters)}.")
    kept = {name: value for name, value in function.items() if value is not None and name != "strict"}
    return {"type": "function", "function": kept}
