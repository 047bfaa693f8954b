"""What a chat completion may ask for."""

from collections.abc import AsyncIterator, Mapping
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
    top_k,
)
from miles_router.sessions.dialects.openai_chat import answer
from miles_router.sessions.dialects.openai_chat.messages import read_messages
from miles_router.sessions.request import TurnRequest, check_stop, check_tools
from miles_router.sessions.tree import Turn

NAME = "openai_chat"
FIELDS = Known(
    handled=frozenset(
        {
            "messages", "tools", "temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens", "seed",
            "stream", "stream_options", "stop", "logprobs",
        }
    ),
    without_effect=frozenset(
        {
            "model", "user", "metadata", "store", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
            "reasoning_effort", "verbosity",
        }
    ),
    only={
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
        "echo": (None, False),
        "functions": (None,),
        "function_call": (None,),
    },
)  # fmt: skip
STREAM_OPTIONS = Known(
    handled=frozenset({"include_usage"}), without_effect=frozenset({"include_obfuscation", "continuous_usage_stats"})
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A turn's request, and how its answer is to be written."""

    turn: TurnRequest
    include_usage: bool
    logprobs: bool

    def whole(self, turn: Turn, facts: AnswerFacts) -> Mapping[str, Any]:
        """A `chat.completion`."""
        return answer.completion(turn, facts, logprobs=self.logprobs)

    def events(self, attempt: Attempt, facts: AnswerFacts) -> AsyncIterator[bytes]:
        """Events of `chat.completion.chunk`."""
        return answer.stream(attempt, facts, include_usage=self.include_usage, logprobs=self.logprobs)


def parse_request(body: bytes) -> ChatRequest:
    """The request in a body; SessionError 400 names the field, what was expected and what was found."""
    fields = read_object(body)
    FIELDS.check(fields)
    options = obj(fields.get("stream_options") or {}, "stream_options")
    STREAM_OPTIONS.check(options, "stream_options.")
    turn = TurnRequest(
        messages=read_messages(fields.get("messages")),
        tools=_tools(fields.get("tools"), fields.get("tool_choice")),
        temperature=number(fields, "temperature", least=0.0, most=100.0),
        top_p=number(fields, "top_p", least=0.0, most=1.0),
        top_k=top_k(fields),
        max_tokens=_max_tokens(fields),
        seed=integer(fields, "seed", least=-(2**63)),
        stream=flag(fields, "stream"),
        stop=check_stop(fields.get("stop")),
        fingerprint=fingerprint(NAME, fields),
        dialect=NAME,
    )
    return ChatRequest(turn=turn, include_usage=flag(options, "include_usage"), logprobs=flag(fields, "logprobs"))


def _tools(tools: Any, choice: Any) -> tuple[Mapping[str, Any], ...] | None:
    checked = None if tools is None else check_tools(tools)
    return () if choice == "none" else checked


def _max_tokens(fields: Mapping[str, Any]) -> int | None:
    old, new = (integer(fields, name, least=1) for name in ("max_tokens", "max_completion_tokens"))
    if old is not None and new is not None and old != new:
        raise FieldError("max_tokens", f"is {brief(old)} and max_completion_tokens is {brief(new)}; give one of them.")
    return new if old is None else old
