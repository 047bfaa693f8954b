"""Input items of a response as chat messages.

What one turn of the assistant made (reasoning, text, calls) comes back as a run of items; a run is one message. Where
ids show that two items came from different turns, the run is split there.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from miles_router.sessions.dialects.fields import FieldError, Known, brief, text

MESSAGE = Known(
    handled=frozenset({"type", "role", "content", "id"}), without_effect=frozenset({"status", "phase", "name"})
)
CALL = Known(
    handled=frozenset({"type", "id", "call_id", "name", "arguments"}),
    without_effect=frozenset({"status", "parsed_arguments"}),
    only={"namespace": (None,)},
)
OUTPUT = Known(handled=frozenset({"type", "id", "call_id", "output"}), without_effect=frozenset({"status"}))
REASONING = Known(
    handled=frozenset({"type", "id", "content", "summary"}), without_effect=frozenset({"status", "encrypted_content"})
)
TEXT_PART = Known(
    handled=frozenset({"type", "text"}),
    without_effect=frozenset({"annotations", "logprobs", "parsed", "prompt_cache_breakpoint"}),
)
TEXT_KINDS = ("input_text", "output_text", "text")
REASONING_KINDS = ("reasoning_text", "summary_text", "text")


def read_input(value: Any) -> list[dict[str, Any]]:
    """The messages of `input`; FieldError names the place of what cannot be used."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise FieldError("input", f"expected a text or a list of items, found {brief(value)}.")
    run = _Run()
    messages: list[dict[str, Any]] = []
    for place, item in enumerate(value):
        where = f"input.{place}."
        if not isinstance(item, Mapping):
            raise FieldError(where[:-1], f"expected an item, found {brief(item)}.")
        kind = item.get("type") or ("message" if "role" in item else None)
        if kind in ("reasoning", "function_call") or (kind == "message" and item.get("role") == "assistant"):
            messages += run.add(kind, item, where)
            continue
        messages += run.end()
        if kind == "message":
            messages.append(_message(item, where))
        elif kind == "function_call_output":
            messages.append(_tool_message(item, where))
        else:
            raise FieldError(where + "type", f"items of type {brief(kind)} are not supported in a session.")
    return [*messages, *run.end()]


class _Run:
    """The assistant message that a run of items builds up."""

    def __init__(self) -> None:
        self._message: dict[str, Any] | None = None
        self._turn: str | None = None

    def add(self, kind: str, item: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
        """Take one item; the message before it, when this one begins another turn."""
        turn = _turn_of(item.get("id"))
        ended = self.end() if turn and self._turn and turn != self._turn else []
        self._turn = turn or self._turn
        message = self._message = self._message or {"role": "assistant", "content": ""}
        if kind == "reasoning":
            REASONING.check(item, where)
            parts = item.get("content") or item.get("summary") or []
            found = _join(parts, where + "content", REASONING_KINDS)
            if found:
                message["reasoning_content"] = message.get("reasoning_content", "") + found
        elif kind == "function_call":
            CALL.check(item, where)
            call = {"name": text(item, "name", where), "arguments": text(item, "arguments", where)}
            identity = text(item, "call_id", where)
            message.setdefault("tool_calls", []).append({"id": identity, "type": "function", "function": call})
        else:
            MESSAGE.check(item, where)
            message["content"] += _text(item.get("content"), where + "content")
        return ended

    def end(self) -> list[dict[str, Any]]:
        """The message that is complete now, if there is one."""
        message, self._message, self._turn = self._message, None, None
        return [] if message is None else [message]


def _message(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    MESSAGE.check(item, where)
    role = item.get("role")
    if role not in ("user", "system", "developer"):
        raise FieldError(where + "role", f"expected user, assistant, system or developer, found {brief(role)}.")
    return {"role": role, "content": _text(item.get("content"), where + "content")}


def _tool_message(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    OUTPUT.check(item, where)
    call_id = text(item, "call_id", where)
    return {"role": "tool", "tool_call_id": call_id, "content": _text(item.get("output"), where + "output")}


def _text(content: Any, where: str) -> str:
    return content if isinstance(content, str) else _join(content, where, TEXT_KINDS)


def _join(parts: Any, where: str, kinds: Sequence[str]) -> str:
    if not isinstance(parts, list):
        raise FieldError(where, f"expected a text or a list of parts, found {brief(parts)}.")
    texts = []
    for place, part in enumerate(parts):
        at = f"{where}.{place}"
        kind = part.get("type") if isinstance(part, Mapping) else part
        if kind == "refusal" and isinstance(part, Mapping) and not part.get("refusal"):
            continue
        if not isinstance(part, Mapping) or kind not in kinds:
            raise FieldError(at, f"only text parts are supported in a session, found {brief(kind)}.")
        TEXT_PART.check(part, at + ".")
        texts.append(text(part, "text", at + "."))
    return "".join(texts)


def _turn_of(identity: Any) -> str | None:
    """The turn that an item's id names, None for ids of others."""
    parts = identity.split("_") if isinstance(identity, str) else []
    return parts[2] if len(parts) == 4 else None
