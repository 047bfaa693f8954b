"""Content blocks as chat messages.

Text blocks of one user message, of the system prompt or of a tool's result are joined by newlines, those of one
assistant message as they are: there they are pieces of one sampled text.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from miles_router.sessions.dialects.fields import FieldError, Known, brief, obj, text
from miles_tito.parsers.calls import INVALID_NAME

CACHE = frozenset({"cache_control"})
MESSAGE = Known(handled=frozenset({"role", "content"}), without_effect=frozenset({"id"}))
TEXT = Known(handled=frozenset({"type", "text"}), without_effect=CACHE, only={"citations": (None, [])})
THINKING = Known(handled=frozenset({"type", "thinking"}), without_effect=CACHE | {"signature"})
TOOL_USE = Known(
    handled=frozenset({"type", "id", "name", "input"}),
    without_effect=CACHE,
    only={"caller": (None, {"type": "direct"})},
)
TOOL_RESULT = Known(handled=frozenset({"type", "tool_use_id", "content"}), without_effect=CACHE | {"is_error"})


def read_system(system: Any) -> list[dict[str, Any]]:
    """The system message, none when there is no text."""
    if system is None:
        return []
    found = _text(system, "system", join="\n")
    return [{"role": "system", "content": found}] if found else []


def read_messages(value: Any) -> list[dict[str, Any]]:
    """The conversation; FieldError names the place of what cannot be used."""
    if not isinstance(value, list) or not value:
        raise FieldError("messages", f"expected a list of at least one message, found {brief(value)}.")
    messages: list[dict[str, Any]] = []
    for place, message in enumerate(value):
        where = f"messages.{place}."
        MESSAGE.check(obj(message, where[:-1]), where)
        content = message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(blocks, list):
            raise FieldError(where + "content", f"expected a text or a list of blocks, found {brief(content)}.")
        if message.get("role") == "user":
            messages += _user(blocks, where + "content.")
        elif message.get("role") == "assistant":
            messages.append(_assistant(blocks, where + "content."))
        else:
            raise FieldError(where + "role", f"expected user or assistant, found {brief(message.get('role'))}.")
    if messages[-1]["role"] == "assistant":
        raise FieldError("messages", "expected a user's turn last; an assistant's turn is not continued in a session.")
    return messages


def call_input(arguments: str, *, name: str) -> Any:
    """The input of a call as orjson writes it: its arguments in their own spelling where they are an object of JSON.

    The text of a call that could not be read, or that JSON cannot hold (half a character), is under "text".
    """
    if name == INVALID_NAME or not _is_object(arguments):
        return {"text": arguments}
    return orjson.Fragment(arguments)


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(orjson.loads(arguments), dict)
    except orjson.JSONDecodeError:
        return False


def _user(blocks: Sequence[Any], where: str) -> list[dict[str, Any]]:
    """Tool results and the user's text, in their order."""
    messages: list[dict[str, Any]] = []
    for place, block in enumerate(blocks):
        at = f"{where}{place}"
        kind = obj(block, at).get("type")
        if kind == "tool_result":
            TOOL_RESULT.check(block, at + ".")
            identity = text(block, "tool_use_id", at + ".")
            found = _text(block.get("content") or "", at + ".content", join="\n")
            messages.append({"role": "tool", "tool_call_id": identity, "content": found})
            continue
        found = _block_text(block, at)
        if messages and messages[-1]["role"] == "user":
            messages[-1]["content"] += "\n" + found
        else:
            messages.append({"role": "user", "content": found})
    return messages or [{"role": "user", "content": ""}]


def _assistant(blocks: Sequence[Any], where: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for place, block in enumerate(blocks):
        at = f"{where}{place}"
        kind = obj(block, at).get("type")
        if kind == "thinking":
            THINKING.check(block, at + ".")
            message["reasoning_content"] = message.get("reasoning_content", "") + text(block, "thinking", at + ".")
        elif kind == "tool_use":
            TOOL_USE.check(block, at + ".")
            message.setdefault("tool_calls", []).append(_call(block, at))
        else:
            message["content"] += _block_text(block, at)
    return message


def _call(block: Mapping[str, Any], at: str) -> dict[str, Any]:
    name, identity = text(block, "name", at + "."), text(block, "id", at + ".")
    given = obj(block.get("input") or {}, at + ".input")
    if name == INVALID_NAME and isinstance(given.get("text"), str):
        arguments = given["text"]
    else:
        arguments = json.dumps(given, ensure_ascii=False)
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def _text(content: Any, where: str, *, join: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise FieldError(where, f"expected a text or a list of text blocks, found {brief(content)}.")
    return join.join(_block_text(block, f"{where}.{place}") for place, block in enumerate(content))


def _block_text(block: Any, at: str) -> str:
    kind = obj(block, at).get("type")
    if kind != "text":
        raise FieldError(at + ".type", f"blocks of type {brief(kind)} are not supported here.")
    TEXT.check(block, at + ".")
    return text(block, "text", at + ".")
