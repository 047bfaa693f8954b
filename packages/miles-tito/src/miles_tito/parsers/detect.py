"""Which format a chat template writes turns in: the one that reads back what the template renders."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from miles_tito.errors import TemplateError, shared_prefix
from miles_tito.parsers.formats import FORMATS, PLAIN, REASONING, TurnFormat, format_named
from miles_tito.parsers.marked import CallSyntax
from miles_tito.parsers.message import Delta, join_deltas
from miles_tito.parsers.stream import StreamParser
from miles_tito.render import ChatTemplate

Message = Mapping[str, Any]
_NOW = datetime(2026, 1, 1, 12, 0, 0)
_USER: Message = {"role": "user", "content": "u"}
_SAYS, _THINKS = "zqsaysqz", "zqthinksqz"
_ARGUMENTS: tuple[Mapping[str, Any], ...] = (
    {"city": "Rome one", "days": 3, "warm": True, "more": {"a": [1, "x"]}, "tags": ["p", 2.5], "code": "42"},
    {},
)
_NAMES = ("look_up", "ping")
_TYPES: Mapping[str, Mapping[str, Any]] = {
    "city": {"type": "string", "description": "Where."},
    "days": {"type": "integer", "description": "How many."},
    "warm": {"type": "boolean", "description": "Or cold."},
    "more": {"type": "object", "description": "Anything.", "additionalProperties": {"type": "string"}},
    "tags": {"type": "array", "description": "Words.", "items": {"type": "string"}},
    "code": {"type": "string", "description": "Digits."},
}
TOOLS: tuple[Message, ...] = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Looks.",
            "parameters": {"type": "object", "properties": properties, "required": []},
        },
    }
    for name, properties in zip(_NAMES, (_TYPES, {}), strict=True)
)
"""Tools whose parameters have every type that a format may write differently."""


def detect(template: ChatTemplate) -> str:
    """Name of the first format that reads back, call by call, what the template renders; see `formats.format_named`.

    The reasoning's marks are those that a rendered turn with reasoning is read back with, else those that the
    generation prompt writes, else those that the prompt's own text names. A template whose calls no format reads back
    has no calls.
    """
    reasoning = _reasoning(template)
    calls = _calls(template, reasoning)
    if calls == "harmony":
        reasoning = ""
    return "+".join(filter(None, (calls, reasoning))) or PLAIN.name


def reads_back(template: ChatTemplate, turn_format: TurnFormat) -> bool:
    """True when the format reads the template's own calls back: names, arguments, and the ids that the text carries."""
    return any(_reads(turn_format, rendered) for rendered in _renders(template))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rendered:
    """An assistant message, and the text of its turn. opened: what the generation prompt wrote of it."""

    message: Message
    text: str
    opened: str = ""


def _calls(template: ChatTemplate, reasoning: str) -> str:
    """Name of the calls' syntax: one that leaves no text before a call, else one that reads the calls at least."""
    renders = list(_renders(template))
    for clean in (True, False):
        for name in FORMATS if renders else ():
            found = format_named("+".join(filter(None, (name, reasoning))))
            if any(_reads(found, rendered, clean=clean) for rendered in renders):
                return name
    return ""


def _renders(template: ChatTemplate) -> Iterator[_Rendered]:
    """Turns with calls, as far as the template shows them: two calls and one, with and without text, by kind of id."""
    for ids in (("abcdefgh1", "abcdefgh2"), tuple(f"functions.{name}:{n}" for n, name in enumerate(_NAMES))):
        for content in (_SAYS, ""):
            for count in (2, 1):
                made = [
                    {
                        "id": ids[n],
                        "type": "function",
                        "function": {"name": _NAMES[n], "arguments": dict(_ARGUMENTS[n])},
                    }
                    for n in range(count)
                ]
                rendered = _render(template, {"role": "assistant", "content": content, "tool_calls": made})
                if rendered and all(name in rendered.text for name in _NAMES[:count]):
                    yield rendered
                    break


def _reads(turn_format: TurnFormat, rendered: _Rendered, *, clean: bool = False) -> bool:
    """True when the calls are read back, and the content if the text shows it. clean: nothing else before a call."""
    tell = turn_format.syntax.tell if isinstance(turn_format.syntax, CallSyntax) else ""
    if tell not in rendered.text:
        return False
    deltas = _deltas(turn_format, rendered)
    message = join_deltas(deltas)
    found = message.get("tool_calls") or []
    wanted, content = rendered.message["tool_calls"], rendered.message["content"]
    if len(found) != len(wanted) or not all(map(_same, found, wanted, [rendered.text] * len(found))):
        return False
    last = max(place for place, delta in enumerate(deltas) if "tool_calls" in delta)
    if clean and join_deltas(deltas[:last])["content"].strip() not in ("", content):
        return False
    return content in message["content"] or content not in rendered.text


def _same(found: Message, wanted: Message, text: str) -> bool:
    function = found["function"]
    return (
        function["name"] == wanted["function"]["name"]
        and not found.get("invalid")
        and json.loads(function["arguments"]) == wanted["function"]["arguments"]
        and (wanted["id"] not in text or found["id"] == wanted["id"])
    )


def _deltas(turn_format: TurnFormat, rendered: _Rendered) -> list[Delta]:
    opening, closing = turn_format.reasoning
    is_open = bool(opening) and rendered.opened.rfind(opening) > rendered.opened.rfind(closing)
    parser = StreamParser(turn_format, reasoning_open=is_open, tools=TOOLS)
    return [*parser.feed(rendered.text), *parser.finish()]


def _reasoning(template: ChatTemplate) -> str:
    says: Message = {"role": "assistant", "content": _SAYS, "reasoning_content": _THINKS}
    call = {"id": "abcdefgh1", "type": "function", "function": {"name": _NAMES[1], "arguments": {}}}
    for message in (says, {**says, "tool_calls": [call]}, {**says, "content": "", "tool_calls": [call]}):
        rendered = _render(template, message)
        if rendered is None or _THINKS not in rendered.text:
            continue
        for name in REASONING:
            message = join_deltas(_deltas(format_named(name), rendered))
            if message.get("reasoning_content", "").strip() == _THINKS:
                return name
    prompt = _text(template, [_USER], generation_prompt=True) or ""
    plain = _text(template, [_USER]) or ""
    written = prompt[shared_prefix(prompt, plain) :]
    for text in (written, prompt):
        for name, (opening, closing) in REASONING.items():
            if (opening in text and closing in text) or text.rstrip().endswith((opening.rstrip(), closing)):
                return name
    return ""


def _render(template: ChatTemplate, message: Message) -> _Rendered | None:
    """The message's turn after a user's: what the template writes beyond the generation prompt."""
    prompt = _text(template, [_USER], generation_prompt=True)
    whole = _text(template, [_USER, message])
    if whole is None:
        # Some templates insist on a result for every call.
        whole = _text(template, [_USER, message, *map(_result, message.get("tool_calls") or ())])
    if prompt is None or whole is None:
        return None
    start = shared_prefix(prompt, whole)
    if start < len(prompt):
        # Where the prompt writes more than the turn, the two may part inside a mark.
        start = _mark_start(whole, start)
    return _Rendered(message=message, text=whole[start:], opened=prompt[:start])


def _result(call: Message) -> Message:
    return {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": "t"}


_OPEN_MARK = re.compile(r"[<\[◁][^<\[\]>\s]*$")


def _mark_start(text: str, end: int) -> int:
    found = _OPEN_MARK.search(text, max(0, end - 60), end)
    return found.start() if found else end


def _text(template: ChatTemplate, messages: Sequence[Message], *, generation_prompt: bool = False) -> str | None:
    try:
        return template.render(
            template.normalised(messages), tools=TOOLS, generation_prompt=generation_prompt, now=_NOW
        )
    except TemplateError:
        return None
