"""Chat messages as clients send them, checked and reduced to what a template may see."""

from collections.abc import Mapping
from typing import Any

from miles_core.errors import RecordError
from miles_core.messages import check_messages
from miles_router.sessions.dialects.fields import FieldError, Known, brief

MESSAGE = Known(
    handled=frozenset({"role", "content", "reasoning_content", "reasoning", "tool_calls", "tool_call_id", "name"}),
    without_effect=frozenset(
        {"id", "annotations", "cache_control", "provider_specific_fields", "thinking_blocks", "reasoning_details"}
    ),
    only={"refusal": (None, ""), "audio": (None,), "function_call": (None,), "prefix": (None, False)},
)
PART = Known(handled=frozenset({"type", "text"}), without_effect=frozenset({"cache_control", "annotations"}))
CALL = Known(
    handled=frozenset({"id", "type", "function", "invalid", "raw", "error"}),
    without_effect=frozenset({"index", "provider_specific_fields", "extra_content"}),
)
FUNCTION = Known(handled=frozenset({"name", "arguments"}), without_effect=frozenset({"provider_specific_fields"}))
TEXT_FIELDS = ("reasoning_content", "reasoning", "tool_call_id", "name")


def read_messages(value: Any) -> tuple[Mapping[str, Any], ...]:
    """The conversation; FieldError names the place of what cannot be used."""
    try:
        checked = check_messages(value)
    except RecordError as error:
        raise FieldError("messages", str(error)) from None
    if not checked:
        raise FieldError("messages", "expected at least one message, found none.")
    return tuple(_message(message, f"messages.{place}.") for place, message in enumerate(checked))


def _message(message: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    MESSAGE.check(message, where)
    found = {"role": message["role"], "content": _content(message.get("content"), where)}
    for name in TEXT_FIELDS:
        value = message.get(name)
        if value is not None and not isinstance(value, str):
            raise FieldError(where + name, f"expected a string, found {brief(value)}.")
        if value:
            found[name] = value
    if message.get("tool_calls"):
        found["tool_calls"] = [
            _call(call, f"{where}tool_calls.{place}.") for place, call in enumerate(message["tool_calls"])
        ]
    return found


def _content(content: Any, where: str) -> Any:
    if content is None or isinstance(content, str):
        return content
    parts = []
    for place, part in enumerate(content):
        at = f"{where}content.{place}"
        part = {"type": "text", "text": part} if isinstance(part, str) else part
        if not isinstance(part, Mapping) or part.get("type", "text") not in ("text", "input_text", "output_text"):
            kind = part.get("type") if isinstance(part, Mapping) else part
            raise FieldError(at, f"only text parts are supported in a session, found {brief(kind)}.")
        PART.check(part, at + ".")
        if not isinstance(part.get("text"), str):
            raise FieldError(at + ".text", f"expected a string, found {brief(part.get('text'))}.")
        parts.append({"type": "text", "text": part["text"]})
    return parts


def _call(call: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    CALL.check(call, where)
    if call.get("type", "function") != "function":
        raise FieldError(where + "type", f'only "function" is supported in a session, found {brief(call["type"])}.')
    function = call["function"]
    FUNCTION.check(function, where + "function.")
    arguments = function.get("arguments")
    if arguments is not None and not isinstance(arguments, str | Mapping):
        raise FieldError(where + "function.arguments", f"expected a JSON text, found {brief(arguments)}.")
    identity = call.get("id")
    if identity is not None and not isinstance(identity, str):
        raise FieldError(where + "id", f"expected a string, found {brief(identity)}.")
    return {
        "id": identity or "",
        "type": "function",
        "function": {"name": function["name"], "arguments": "" if arguments is None else arguments},
    }
