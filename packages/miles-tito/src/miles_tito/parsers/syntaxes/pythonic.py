"""`[f(x=1), g()]`: calls as Python writes them, with literals, as the whole content or between marks (LFM2).

Nothing is evaluated: names and arguments are read here, each value goes through the parser of Python's literals. Names
may hold what Python's do not (`get-weather`, `from`). Content that opens with `[name(` is taken for calls.
"""

import re
from collections.abc import Sequence
from typing import Any

from miles_tito.parsers.calls import Call, Malformed, NotACall
from miles_tito.parsers.json_body import END, expect
from miles_tito.parsers.literals import python_value
from miles_tito.parsers.marked import CallSyntax
from miles_tito.parsers.schemas import Schemas, typed
from miles_tito.parsers.tape import Steps, Tape

_NAME = re.compile(r"[A-Za-z_][\w.\-]*")
_NOT_NAME = re.compile(r"[^\w.\-]")
_OUTSIDE = re.compile(r"[\"'(){}\[\],]|[^\s\w.:+\-#]")
"""Outside a string: what changes the depth or parts values, and what no literal holds there (as a mark does)."""
_INSIDE = {quote: re.compile(rf"[{quote}\\]") for quote in "\"'"}
_BESIDE = frozenset("\"'(){}[],")
_ANY = re.compile(r"(?s).")
_BEGINS = re.compile(r"\s*\[\s*[A-Za-z_][\w.\-]*\(")
_CLOSING = "<|tool_call_end|>"


def _read(tape: Tape, schemas: Schemas) -> Steps[Sequence[Call]]:
    yield from expect(tape, "[")
    calls = [(yield from _call(tape, schemas))]
    while (yield from _separated(tape, "]")):
        calls.append((yield from _call(tape, schemas)))
    return calls


def _read_marked(tape: Tape, schemas: Schemas) -> Steps[Sequence[Call]]:
    calls = yield from _read(tape, schemas)
    yield from expect(tape, _CLOSING)
    return calls


def _read_start(tape: Tape, schemas: Schemas) -> Steps[Sequence[Call]]:
    try:
        return (yield from _read(tape, schemas))
    except Malformed as error:
        if _BEGINS.match(tape.taken()):
            raise
        raise NotACall(str(error)) from error


def _call(tape: Tape, schemas: Schemas) -> Steps[Call]:
    name = yield from _name(tape, "(")
    arguments: dict[str, Any] = {}
    yield from tape.space()
    if not (yield from tape.accept(")")):
        while True:
            key = yield from _name(tape, "=")
            if key in arguments:
                raise Malformed(f"expected each argument once, found {key!r} twice")
            value = python_value((yield from _value(tape)))
            types = schemas.types(name, key)
            # Llama 4 quotes every value; the schema knows better.
            arguments[key] = typed(value, types) if isinstance(value, str) and types else value
            if not (yield from _separated(tape, ")")):
                break
    return Call(name=name, arguments=arguments)


def _name(tape: Tape, after: str) -> Steps[str]:
    """A name and what follows it."""
    yield from tape.space()
    name, character = yield from tape.through(_NOT_NAME)
    if character.isspace():
        yield from tape.space()
        character = after if (yield from tape.accept(after)) else character
    if character != after or not _NAME.fullmatch(name):
        raise Malformed(f"expected a name and {after!r}, found {(name + character)[:60]!r}")
    return name


def _separated(tape: Tape, end: str) -> Steps[bool]:
    """True after a comma, which may also stand before the end; False after the end."""
    yield from tape.space()
    if (yield from tape.accept(end)):
        return False
    yield from expect(tape, ",")
    yield from tape.space()
    return not (yield from tape.accept(end))


def _value(tape: Tape) -> Steps[str]:
    """Text up to the comma or bracket after a value; both are left where they are."""
    parts: list[str] = []
    depth = 0
    while True:
        text, character = yield from tape.through(_OUTSIDE)
        parts.append(text)
        if not character:
            raise Malformed(f"expected a bracket that closes the call, found {END}")
        if depth == 0 and character in ",)]}":
            tape.put_back(character)
            return "".join(parts)
        parts.append(character)
        if character not in _BESIDE:
            raise Malformed(f"expected a literal, found {''.join(parts)[-60:]!r}")
        if character in _INSIDE:
            parts.append((yield from _string(tape, character)))
        elif character != ",":
            depth += 1 if character in "([{" else -1


def _string(tape: Tape, quote: str) -> Steps[str]:
    parts: list[str] = []
    while True:
        text, character = yield from tape.through(_INSIDE[quote])
        parts += [text, character]
        if character == quote:
            return "".join(parts)
        if not character:
            raise Malformed(f"expected a quote that ends the string, found {END}")
        parts += yield from tape.through(_ANY)


PYTHONIC = CallSyntax(opening="<|python_start|>", read=_read, start="[", read_start=_read_start)
LFM2 = CallSyntax(opening="<|tool_call_start|>", closing=_CLOSING, read=_read_marked)
