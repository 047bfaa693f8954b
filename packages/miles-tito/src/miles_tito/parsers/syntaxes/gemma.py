"""`call:name{key:value,...}` between two marks, strings between quote marks. Gemma 4, and FunctionGemma.

Gemma 4 writes only strings between quote marks; FunctionGemma may quote any value, whose type is then the schema's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from miles_tito.parsers.calls import Call, Malformed
from miles_tito.parsers.json_body import END, expect, loads
from miles_tito.parsers.marked import CallSyntax
from miles_tito.parsers.schemas import Schemas
from miles_tito.parsers.tape import Steps, Tape

_PYTHON = {"None": "null", "True": "true", "False": "false"}
_DEEPEST = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class _Marks:
    """Around a call, and on both sides of a string. Outside a string no name and no value goes past any of them."""

    opening: str
    closing: str
    quote: str


def _read(tape: Tape, schemas: Schemas, *, marks: _Marks, typed: bool) -> Steps[Sequence[Call]]:
    yield from expect(tape, "call:")
    name, mark = yield from tape.until("{", marks.closing, marks.opening)
    if mark != "{":
        raise Malformed(f"expected '{{' after the name {name[:60]!r}, found {mark or END!r}")
    arguments: dict[str, Any] = yield from _object(tape, marks, depth=0)
    yield from expect(tape, marks.closing)
    if typed:
        arguments = {
            key: schemas.value(name, key, value) if isinstance(value, str) else value
            for key, value in arguments.items()
        }
    return [Call(name=name.strip(), arguments=arguments)]


def _object(tape: Tape, marks: _Marks, *, depth: int) -> Steps[dict[str, Any]]:
    """Pairs after a brace, up to the one that closes it."""
    found: dict[str, Any] = {}
    yield from tape.space()
    if (yield from tape.accept("}")):
        return found
    while True:
        key = yield from _key(tape, marks)
        if key in found:
            raise Malformed(f"expected each name once, found {key!r} twice")
        found[key] = yield from _value(tape, marks, depth=depth + 1)
        yield from tape.space()
        if (yield from tape.accept("}")):
            return found
        yield from expect(tape, ",")


def _key(tape: Tape, marks: _Marks) -> Steps[str]:
    yield from tape.space()
    if (yield from tape.accept(marks.quote)):
        key = yield from _string(tape, marks.quote)
        yield from expect(tape, ":")
        return key
    key, mark = yield from tape.until(":", marks.closing, marks.opening, marks.quote)
    if mark != ":":
        raise Malformed(f"expected ':' after the name {key[:60]!r}, found {mark or END!r}")
    return key.strip()


def _value(tape: Tape, marks: _Marks, *, depth: int) -> Steps[Any]:
    if depth > _DEEPEST:
        raise Malformed(f"expected at most {_DEEPEST} levels")
    yield from tape.space()
    if (yield from tape.accept(marks.quote)):
        return (yield from _string(tape, marks.quote))
    if (yield from tape.accept("{")):
        return (yield from _object(tape, marks, depth=depth))
    if (yield from tape.accept("[")):
        return (yield from _array(tape, marks, depth=depth))
    text, mark = yield from tape.until(",", "}", "]", marks.closing, marks.opening, marks.quote)
    tape.put_back(mark)
    text = text.strip()
    return loads(_PYTHON.get(text, text))


def _array(tape: Tape, marks: _Marks, *, depth: int) -> Steps[list[Any]]:
    found: list[Any] = []
    yield from tape.space()
    if (yield from tape.accept("]")):
        return found
    while True:
        found.append((yield from _value(tape, marks, depth=depth + 1)))
        yield from tape.space()
        if (yield from tape.accept("]")):
            return found
        yield from expect(tape, ",")


def _string(tape: Tape, quote: str) -> Steps[str]:
    text, mark = yield from tape.until(quote)
    if not mark:
        raise Malformed(f"expected {quote} that ends the string, found {END}")
    return text


def _between(opening: str, closing: str, *, quote: str, typed: bool) -> CallSyntax:
    marks = _Marks(opening=opening, closing=closing, quote=quote)
    return CallSyntax(opening=opening, closing=closing, read=partial(_read, marks=marks, typed=typed))


GEMMA4 = _between("<|tool_call>", "<tool_call|>", quote='<|"|>', typed=False)
FUNCTIONGEMMA = _between("<start_function_call>", "<end_function_call>", quote="<escape>", typed=True)
