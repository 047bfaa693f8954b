"""Chat messages, tool calls and tool schemas in OpenAI's shapes.

They are plain JSON objects (typed dictionaries): agents, templates and HTTP bodies exchange them unchanged. They are
never mutated; `check_messages` is the one place that says whether an object has the shape.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from miles_core.errors import RecordError

ROLES = ("system", "developer", "user", "assistant", "tool")


class FunctionCall(TypedDict):
    """Name and arguments of a call; `arguments` is a JSON string on the wire."""

    name: str
    arguments: str


class ToolCall(TypedDict):
    """A call of a tool by the model."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class Message(TypedDict, total=False):
    """One chat message. `content` is a string, a list of parts or None."""

    role: str
    content: Any
    reasoning_content: str | None
    tool_calls: list[ToolCall]
    tool_call_id: str
    name: str


class ToolSpec(TypedDict):
    """A tool schema: `{"type": "function", "function": {"name", "description", "parameters"}}`."""

    type: Literal["function"]
    function: Mapping[str, Any]


def check_messages(messages: object) -> Sequence[Mapping[str, Any]]:
    """Return `messages` when every one is an object with a known role and well-formed tool calls, else RecordError."""
    if not isinstance(messages, list | tuple):
        raise RecordError(f"expected messages as a list of objects, found {type(messages).__name__}.")
    for place, message in enumerate(messages):
        _check_message(message, place)
    return messages


def _check_message(message: object, place: int) -> None:
    if not isinstance(message, Mapping):
        raise RecordError(f"message {place}: expected an object with a role, found {type(message).__name__}.")
    role = message.get("role")
    if role not in ROLES:
        raise RecordError(f"message {place}: expected a role among {', '.join(ROLES)}, found {role!r}.")
    content = message.get("content")
    if content is not None and not isinstance(content, str | list | tuple):
        raise RecordError(
            f"message {place}: expected content as a string, a list of parts or null, found {type(content).__name__}."
        )
    calls = message.get("tool_calls") or ()
    if not isinstance(calls, list | tuple):
        raise RecordError(f"message {place}: expected tool_calls as a list, found {type(calls).__name__}.")
    for number, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise RecordError(f"message {place}, tool call {number}: expected function.name as a string.")


def text_of(content: object) -> str:
    """The text of a message's content: a string as it is, text parts joined, None as the empty string."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple):
        return "".join(_part_text(part) for part in content)
    raise RecordError(f"expected content as a string, a list of parts or null, found {type(content).__name__}.")


def _part_text(part: object) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and part.get("type") in (None, "text", "input_text", "output_text"):
        return str(part.get("text") or "")
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise RecordError(f"expected text parts in the content, found a part of type {kind!r}.")
