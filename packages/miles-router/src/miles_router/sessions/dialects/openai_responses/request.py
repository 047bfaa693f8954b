"""What a response may ask for."""

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from miles_router.sessions.attempt import Attempt
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
)
from miles_router.sessions.dialects.openai_responses import answer
from miles_router.sessions.dialects.openai_responses.items import read_input
from miles_router.sessions.dialects.openai_responses.stream import stream
from miles_router.sessions.request import TurnRequest, check_tools
from miles_router.sessions.session import Session
from miles_router.sessions.tree import Turn

NAME = "openai_responses"
FIELDS = Known(
    handled=frozenset(
        {
            "input", "instructions", "tools", "temperature", "top_p", "max_output_tokens", "stream", "store",
            "previous_response_id", "metadata", "tool_choice", "include", "text",
        }
    ),
    without_effect=frozenset(
        {
            "model", "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "reasoning",
            "stream_options", "client_metadata",
        }
    ),
    only={
        "background": (None, False),
        "conversation": (None,),
        "max_tool_calls": (None,),
        "parallel_tool_calls": (None, True),
        "prompt": (None,),
        "service_tier": (None, "auto", "default"),
        "top_logprobs": (None, 0),
        "truncation": (None, "disabled"),
        "context_management": (None, []),
    },
)  # fmt: skip
TEXT = Known(handled=frozenset(), without_effect=frozenset({"verbosity"}), only={"format": (None, {"type": "text"})})
TOOL = Known(
    handled=frozenset({"type", "name", "description", "parameters"}),
    without_effect=frozenset({"strict"}),
    only={"defer_loading": (None, False)},
)
INCLUDES = ("reasoning.encrypted_content",)
"""Accepted and without effect: a session keeps the reasoning of its turns itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesRequest:
    """A turn's request; its notes hold what answers repeat of it."""

    turn: TurnRequest

    def whole(self, turn: Turn, facts: AnswerFacts) -> Mapping[str, Any]:
        """A `response`."""
        return answer.response(turn, facts)

    def events(self, attempt: Attempt, facts: AnswerFacts) -> AsyncIterator[bytes]:
        """The events of a response."""
        return stream(self.turn, attempt, facts)


def parse_request(body: bytes, session: Session) -> ResponsesRequest:
    """The request in a body, earlier responses of the session resolved; SessionError 400 names the field."""
    fields = read_object(body)
    FIELDS.check(fields)
    TEXT.check(obj(fields.get("text") or {}, "text"), "text.")
    _check_include(fields.get("include"))
    instructions = fields.get("instructions")
    if instructions is not None and not isinstance(instructions, str):
        raise FieldError("instructions", f"expected a text, found {brief(instructions)}.")
    previous = fields.get("previous_response_id")
    messages: list[Mapping[str, Any]] = [{"role": "system", "content": instructions}] if instructions else []
    messages += _history(previous, session) if previous is not None else ()
    messages += read_input(fields.get("input", [] if previous is not None else None))
    if not messages:
        raise FieldError("input", "expected a text or at least one item, found none.")
    tool_choice = fields.get("tool_choice") or "auto"
    turn = TurnRequest(
        messages=tuple(messages),
        tools=_tools(fields.get("tools"), tool_choice),
        temperature=number(fields, "temperature", least=0.0, most=100.0),
        top_p=number(fields, "top_p", least=0.0, most=1.0),
        top_k=None,
        max_tokens=integer(fields, "max_output_tokens", least=1),
        seed=None,
        stream=flag(fields, "stream"),
        fingerprint=fingerprint(NAME, fields),
        dialect=NAME,
        notes=_notes(fields, tool_choice),
    )
    return ResponsesRequest(turn=turn)


def _notes(fields: Mapping[str, Any], tool_choice: str) -> Mapping[str, Any]:
    return {
        "created_at": int(time.time()),
        "instructions": bool(fields.get("instructions")),
        "max_output_tokens": fields.get("max_output_tokens"),
        "metadata": dict(obj(fields.get("metadata") or {}, "metadata")),
        "previous_response_id": fields.get("previous_response_id"),
        "store": fields.get("store") is None or flag(fields, "store"),
        "temperature": fields.get("temperature"),
        "tool_choice": tool_choice,
        "top_p": fields.get("top_p"),
    }


def _history(previous: Any, session: Session) -> Sequence[Mapping[str, Any]]:
    """The conversation of an earlier response without its instructions, which are not carried over."""
    turn = answer.find_response(session, previous)
    if turn is None:
        raise FieldError(
            "previous_response_id",
            f"{brief(previous)} is no stored response of this session.",
            code="previous_response_not_found",
        )
    return turn.conversation()[1 if turn.notes.get("instructions") else 0 :]


def _tools(tools: Any, choice: Any) -> tuple[Mapping[str, Any], ...] | None:
    if choice not in ("auto", "none"):
        raise FieldError("tool_choice", f'only "auto" or "none" is supported in a session, found {brief(choice)}.')
    if tools is None:
        return None if choice == "auto" else ()
    if not isinstance(tools, list):
        raise FieldError("tools", f"expected a list, found {brief(tools)}.")
    checked = check_tools([_tool(tool, f"tools.{place}.") for place, tool in enumerate(tools)])
    return () if choice == "none" else checked


def _tool(tool: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(tool, Mapping) or tool.get("type") != "function" or not isinstance(tool.get("name"), str):
        kind = tool.get("type") if isinstance(tool, Mapping) else tool
        raise FieldError(
            where[:-1],
            f'expected {{"type": "function", "name": ...}}, the only type in a session; found {brief(kind)}.',
        )
    TOOL.check(tool, where)
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def _check_include(include: Any) -> None:
    if not isinstance(include or [], list) or any(entry not in INCLUDES for entry in include or []):
        raise FieldError("include", f"only {brief(list(INCLUDES))} is supported in a session, found {brief(include)}.")
