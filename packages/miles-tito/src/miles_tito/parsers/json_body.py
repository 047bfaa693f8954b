"""Calls whose body is JSON, read as it comes."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from miles_tito.parsers.calls import Call, Malformed
from miles_tito.parsers.tape import Steps, Tape

_OUTSIDE = re.compile(r'["{}\[\]]|[^\s:,\w.+\-]')
"""Outside a string: what changes the depth, and what JSON never holds there."""
_ATOMS = re.compile(r"(?:[\s:,]|true\b|false\b|null\b|-?NaN\b|-?Infinity\b|-?\d[\w.+\-]*+)*+")
"""What stands between those: what may be a number, words, and what parts them; `loads` has the last word."""
_INSIDE = re.compile(r'["\\]')
_ANY = re.compile(r"(?s).")


def json_value(tape: Tape) -> Steps[Any]:
    """The JSON object or array that comes next, white space before it taken.

    A closing mark inside one of its strings is text. `Malformed` where the text stops being JSON.
    """
    yield from tape.space()
    if (yield from tape.peek()) not in ("{", "["):
        raise Malformed(f"expected JSON, found {(yield from _next(tape))!r}")
    text = yield from _balanced(tape)
    return loads(text)


def loads(text: str) -> Any:
    """Value of the JSON text; control characters in strings are let through. `Malformed` for anything else."""
    try:
        return json.loads(text, strict=False, object_pairs_hook=_object, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"expected JSON, found {error}") from error


def json_object(value: Any) -> dict[str, Any]:
    """The value as an object of arguments; a string that holds one is read, None is none."""
    if isinstance(value, str):
        value = loads(value)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Malformed(f"expected arguments as an object, found {type(value).__name__}")
    return value


def call_of(
    value: Any,
    *,
    names: Sequence[str] = ("name",),
    arguments: Sequence[str] = ("arguments", "parameters"),
    ids: Sequence[str] = (),
) -> Call:
    """The call that a JSON object with a name and arguments spells. ids: keys under which it may carry its id."""
    if not isinstance(value, dict):
        raise Malformed(f'expected an object with a "{names[0]}", found {type(value).__name__}')
    if isinstance(value.get("function"), dict) and value.keys().isdisjoint(names):
        value = value["function"] | {key: item for key, item in value.items() if key != "function"}
    name = _first(value, names)
    if not isinstance(name, str):
        raise Malformed(f'expected an object with a "{names[0]}"')
    # A key that means nothing may be a misspelt one that does: its value must not be lost.
    unknown = next((key for key in value if key not in {*names, *arguments, *ids, "type"}), None)
    if unknown is not None or value.get("type", "function") != "function":
        raise Malformed(f'expected "{names[0]}" and "{arguments[0]}", found {unknown or value["type"]!r}')
    identity = _first(value, ids)
    return Call(
        name=name,
        arguments=json_object(_first(value, arguments)),
        identity=None if identity is None else str(identity),
    )


def calls_of(value: Any, **keys: Sequence[str]) -> list[Call]:
    """The calls of an array of objects, or of one object; see `call_of`."""
    values = value if isinstance(value, list) else [value]
    if not values:
        raise Malformed("expected an array of calls, found an empty one")
    return [call_of(item, **keys) for item in values]


def expect(tape: Tape, text: str) -> Steps[None]:
    """Take the text, with white space before it; `Malformed` where something else comes next."""
    yield from tape.space()
    if not (yield from tape.accept(text)):
        found = yield from _next(tape)
        raise Malformed(f"expected {text}, found {found!r}" if found else f"expected {text}, found {END}")


END = "the end of the turn"


def _next(tape: Tape) -> Steps[str]:
    return (yield from tape.peek())


def _balanced(tape: Tape) -> Steps[str]:
    """Text from an opening bracket to the one that closes it."""
    parts: list[str] = []
    depth = 0
    while True:
        text, character = yield from tape.through(_OUTSIDE)
        if not _ATOMS.fullmatch(text):
            raise Malformed(f"expected JSON, found {text.strip()[:60]!r}")
        parts += [text, character]
        if character in ("{", "["):
            depth += 1
        elif character in ("}", "]"):
            depth -= 1
        elif character == '"':
            parts.append((yield from _string(tape)))
        else:
            raise Malformed(f"expected JSON, found {character!r}" if character else f"expected JSON, found {END}")
        if depth == 0:
            return "".join(parts)


def _string(tape: Tape) -> Steps[str]:
    """Text from after a quote to the quote that ends the string."""
    parts: list[str] = []
    while True:
        text, character = yield from tape.through(_INSIDE)
        parts += [text, character]
        if character == '"':
            return "".join(parts)
        if not character:
            raise Malformed(f"expected a quote that ends the string, found {END}")
        parts += yield from tape.through(_ANY)


def _first(value: Mapping[str, Any], keys: Sequence[str]) -> Any:
    return next((value[key] for key in keys if value.get(key) is not None), None)


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise Malformed(f"expected each name once, found {twice!r} twice")
    return found


def _no_constant(name: str) -> Any:
    raise Malformed(f"expected a JSON value, found {name}")
