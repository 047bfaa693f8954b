"""One request for a turn, whatever dialect it came in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from miles_core.errors import SessionError


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """A checked request. None means the client left it open.

    messages and tools are in OpenAI's chat shapes. tools: None takes the session's own, () none at all. stream: the
    engine is asked for pieces. fingerprint: the same for a retry that differs in bytes only. dialect and notes are
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
    dialect: str = "openai_chat"
    notes: Mapping[str, Any] = field(default_factory=dict)


def tools_key(tools: Sequence[Mapping[str, Any]]) -> str:
    """One text per meaning: field order does not matter."""
    return orjson.dumps(list(tools), option=orjson.OPT_SORT_KEYS).decode()


def check_tools(tools: object) -> tuple[Mapping[str, Any], ...]:
    """Tool schemas in OpenAI's chat shape; SessionError 400 otherwise."""
    if not isinstance(tools, list | tuple):
        raise SessionError(f"tools: expected a list, found {type(tools).__name__}.", status=400)
    for place, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) and tool.get("type") == "function" else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise SessionError(
                f'tools.{place}: expected {{"type": "function", "function": {{"name": ...}}}}.', status=400
            )
    return tuple(tools)
