"""What a message may ask for."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from miles_router.sessions.attempt import Attempt
from miles_router.sessions.dialects.anthropic import answer
from miles_router.sessions.dialects.anthropic.messages import read_messages, read_system
from miles_router.sessions.dialects.anthropic.stream import stream
from miles_router.sessions.dialects.dialect import AnswerFacts
from miles_router.sessions.dialects.fields import (
    FieldError,
    Known,
    brief,
    fingerprint,
    flag,
    integer,
    number,
    obj,
    read_object,
    top_k,
)
from miles_router.sessions.request import TurnRequest, check_stop, check_tools
from miles_router.sessions.tree import Turn

NAME = "anthropic"
FIELDS = Known(
    handled=frozenset(
        {
            "messages", "system", "max_tokens", "tools", "tool_choice", "temperature", "top_p", "top_k", "stream",
            "stop_sequences", "thinking", "context_management", "output_config",
        }
    ),
    without_effect=frozenset({"model", "metadata", "cache_control", "inference_geo", "betas"}),
    only={
        "service_tier": (None, "auto", "standard_only"),
        "mcp_servers": (None, []),
        "container": (None,),
        "speed": (None, "standard"),
        "output_format": (None,),
    },
)  # fmt: skip
THINKING = Known(handled=frozenset({"type"}), without_effect=frozenset({"budget_tokens", "display"}))
THINKING_KINDS = ("enabled", "adaptive", "disabled")
OUTPUT = Known(handled=frozenset(), without_effect=frozenset({"effort"}), only={"format": (None,)})
CHOICE = Known(handled=frozenset({"type"}), only={"disable_parallel_tool_use": (None, False)})
TOOL = Known(
    handled=frozenset({"type", "name", "description", "input_schema"}),
    without_effect=frozenset({"cache_control", "strict", "eager_input_streaming", "input_examples"}),
    only={"defer_loading": (None, False), "allowed_callers": (None, ["direct"])},
)
KEEPS_ALL = {"type": "clear_thinking_20251015", "keep": "all"}
"""The one edit of the context that changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesRequest:
    """A turn's request, and how its answer is to be written. thinking: blocks of thinking are shown."""

    turn: TurnRequest
    thinking: bool

    def whole(self, turn: Turn, facts: AnswerFacts) -> Mapping[str, Any]:
        """A `message`."""
        return answer.message(turn, facts, thinking=self.thinking)

    def events(self, attempt: Attempt, facts: AnswerFacts) -> AsyncIterator[bytes]:
        """The events of a message."""
        return stream(attempt, facts, thinking=self.thinking)


def parse_request(body: bytes, *, counting: bool = False) -> MessagesRequest:
    """The request in a body; SessionError 400 names the field. counting: `max_tokens` may be absent."""
    fields = read_object(body)
    FIELDS.check(fields)
    OUTPUT.check(obj(fields.get("output_config") or {}, "output_config"), "output_config.")
    _check_edits(fields.get("context_management"))
    max_tokens = integer(fields, "max_tokens", least=1)
    if max_tokens is None and not counting:
        raise FieldError("max_tokens", "expected an integer of at least 1, found none.")
    turn = TurnRequest(
        messages=(*read_system(fields.get("system")), *read_messages(fields.get("messages"))),
        tools=_tools(fields.get("tools"), fields.get("tool_choice")),
        temperature=number(fields, "temperature", least=0.0, most=100.0),
        top_p=number(fields, "top_p", least=0.0, most=1.0),
        top_k=top_k(fields),
        max_tokens=max_tokens,
        seed=None,
        stream=flag(fields, "stream"),
        stop=check_stop(fields.get("stop_sequences"), name="stop_sequences"),
        fingerprint=fingerprint(NAME, fields),
        dialect=NAME,
    )
    return MessagesRequest(turn=turn, thinking=_thinking(fields.get("thinking")))


def _thinking(thinking: Any) -> bool:
    if thinking is None:
        return True
    THINKING.check(obj(thinking, "thinking"), "thinking.")
    if thinking.get("type") not in THINKING_KINDS:
        raise FieldError("thinking.type", f"expected one of {', '.join(THINKING_KINDS)}, found {brief(thinking)}.")
    return bool(thinking["type"] != "disabled")


def _tools(tools: Any, choice: Any) -> tuple[Mapping[str, Any], ...] | None:
    kind = "auto" if choice is None else obj(choice, "tool_choice").get("type")
    if kind not in ("auto", "none"):
        raise FieldError("tool_choice", f'only type "auto" or "none" is supported in a session, found {brief(choice)}.')
    CHOICE.check(choice or {}, "tool_choice.")
    if tools is None:
        return None if kind == "auto" else ()
    if not isinstance(tools, list):
        raise FieldError("tools", f"expected a list, found {brief(tools)}.")
    checked = check_tools([_tool(tool, f"tools.{place}") for place, tool in enumerate(tools)])
    return () if kind == "none" else checked


def _tool(tool: Any, where: str) -> Mapping[str, Any]:
    kind = obj(tool, where).get("type")
    if kind not in (None, "custom"):
        raise FieldError(where + ".type", f"tools of type {brief(kind)} are not built into a session.")
    TOOL.check(tool, where + ".")
    if not isinstance(tool.get("name"), str) or not isinstance(tool.get("input_schema"), Mapping):
        raise FieldError(where, f"expected a name and an object as input_schema, found {brief(tool)}.")
    function = {"name": tool["name"], "description": tool.get("description"), "parameters": tool["input_schema"]}
    return {"type": "function", "function": function}


def _check_edits(management: Any) -> None:
    edits = obj(management or {}, "context_management").get("edits") or []
    if not isinstance(edits, list) or any(edit != KEEPS_ALL for edit in edits):
        raise FieldError("context_management", f"a session keeps its whole history, found {brief(management)}.")
