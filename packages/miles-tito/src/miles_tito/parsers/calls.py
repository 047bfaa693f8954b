"""One tool call; what cannot be read is kept and marked."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import xxhash

INVALID_NAME = "invalid_tool_call"
"""Function name of a call that could not be read; no tool has it."""
_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"


class Malformed(Exception):  # noqa: N818 (it says what the text is; a reader raises it and the turn keeps the text)
    """The text at this place is no call. The message says what was expected and what was found."""


class NotACall(Malformed):
    """The text at this place only began like a call: it is content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call as the text spells it. identity: the id that the text carries, or None. text: the arguments as JSON.

    `Malformed` for what has no form on the wire: no name, text that is no Unicode, numbers that JSON does not know.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    identity: str | None = None
    text: str = field(init=False)

    def __post_init__(self) -> None:
        if not self.name or self.name != self.name.strip() or not _is_unicode(self.name + (self.identity or "")):
            raise Malformed(f"expected the name of a function, found {self.name!r}")
        object.__setattr__(self, "text", _json(self.arguments))


def call_id(seed: int | str, index: int) -> str:
    """Nine alphanumerics (the strictest rule templates have), fixed by the seed and the call's place in its turn."""
    number = xxhash.xxh3_64_intdigest(f"{seed}/{index}".encode())
    letters = []
    for _ in range(9):
        number, digit = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[digit])
    return "".join(letters)


def function_call(call: Call, identity: str) -> dict[str, Any]:
    """The call in OpenAI's shape, with its own id where the text carries one; `arguments` is an object as JSON text."""
    return {
        "id": call.identity or identity,
        "type": "function",
        "function": {"name": call.name, "arguments": call.text},
    }


def invalid_call(identity: str, body: str, raw: str, error: str) -> dict[str, Any]:
    """A call that could not be read: marked, with its text, in a shape that lets a harness answer with an error."""
    return {
        "id": identity,
        "type": "function",
        "function": {"name": INVALID_NAME, "arguments": body},
        "invalid": True,
        "raw": raw,
        "error": error,
    }


def _json(arguments: Mapping[str, Any]) -> str:
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        # A lone surrogate ("\ud800" in JSON) has no UTF-8 form; escaped it survives the wire.
        return text if _is_unicode(text) else json.dumps(arguments)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"expected arguments that JSON can hold, found {error}") from error


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
