"""When a message that a client sends back is the message that was recorded."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from miles_core.errors import PluginError
from miles_core.messages import text_of
from miles_core.plugins import load

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Matcher:
    """Compares messages by a key; reasoning apart, equal keys mean the same message.

    key: canonical text of what must agree. check_reasoning: a recorded answer also needs equal reasoning when the
    client sends reasoning back (many clients send none).
    """

    key: Callable[[Message], str]
    check_reasoning: bool

    def agreement(self, recorded: Message, sent: Message) -> int | None:
        """How well an answer sent back fits a recorded one of the same key: None not at all, larger is better."""
        sent_reasoning = reasoning_of(sent)
        if self.check_reasoning and sent_reasoning and sent_reasoning != reasoning_of(recorded):
            return None
        same_ids = _call_ids(recorded) == _call_ids(sent)
        return int(bool(sent_reasoning)) + int(same_ids)


def reasoning_of(message: Message) -> str:
    """The reasoning text under either of its usual names, or the empty string."""
    return str(message.get("reasoning_content") or message.get("reasoning") or "")


def loose_tool_call_key(message: Message) -> str:
    """Role, text, tool calls with their arguments as JSON values, and what a tool message answers."""
    calls = [(call["function"]["name"], _json_value(call["function"].get("arguments"))) for call in _calls(message)]
    return _dump(message, calls)


def strict_key(message: Message) -> str:
    """Role, text, reasoning, tool calls with ids and arguments as they are spelled, and what a tool message answers."""
    calls = [
        (call.get("id") or "", call["function"]["name"], call["function"].get("arguments") or "")
        for call in _calls(message)
    ]
    return _dump(message, calls, reasoning_of(message))


def role_content_key(message: Message) -> str:
    """Role and text alone."""
    return json.dumps([message.get("role"), text_of(message.get("content"))])


MATCHERS: Mapping[str, Matcher] = {
    "loose_tool_call": Matcher(loose_tool_call_key, check_reasoning=True),
    "strict": Matcher(strict_key, check_reasoning=False),
    "role_content": Matcher(role_content_key, check_reasoning=False),
}


def matcher_named(name: str) -> Matcher:
    """The matcher in the table, or one over the key function at `module:attribute`; PluginError otherwise."""
    if name in MATCHERS:
        return MATCHERS[name]
    try:
        return Matcher(load("message_matchers", name), check_reasoning=False)
    except PluginError as error:
        raise PluginError(f"{error} Built in: {', '.join(MATCHERS)}.") from None


def _dump(message: Message, calls: list[Any], *more: str) -> str:
    parts = [
        message.get("role"),
        text_of(message.get("content")),
        calls,
        message.get("tool_call_id") or "",
        message.get("name") or "",
        *more,
    ]
    return json.dumps(parts, sort_keys=True)


def _calls(message: Message) -> list[Mapping[str, Any]]:
    return list(message.get("tool_calls") or ())


def _call_ids(message: Message) -> list[Any]:
    return [call.get("id") for call in _calls(message)]


def _json_value(arguments: object) -> Any:
    """Arguments as a JSON value with one spelling per number; text that is not JSON stays text."""
    if isinstance(arguments, str):
        try:
            return ["value", _plain(json.loads(arguments))]
        except (ValueError, RecursionError):
            return ["text", arguments]
    return ["value", _plain(arguments)]


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
