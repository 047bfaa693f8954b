"""`call:name{key:value,...}` between two marks, strings between quote marks. Gemma 4, and FunctionGemma.

Gemma 4 writes only strings between quote marks; FunctionGemma may quote any value, whose type is then the schema's.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from miles_tito.parsers.calls import Call, Malformed
from miles_tito.parsers.json_body import END, expect, loads
from miles_tito.parsers.marked import CallSyntax
from miles_tito.parsers.schemas import Schemas
from miles_tito.parsers.tape import Steps, Tape

_PYTHON = {"None": "null", "True": "true", "False": "false"}
_DEEPEST = 100


def _read(tape: Tape, schemas: Schemas, *, quote: str, closing: str, typed: bool) -> Steps[Sequence[Call]]:
    yield from expect(tape, "call:")
    name, mark = yield from tape.until("{", closing)
    if mark != "{":
        raise Malformed(f"expected '{{' after the name {name[:60]!r}, found {mark or END!r}")
    arguments: dict[str, Any] = yield from _object(tape, quote, closing, depth=0)
    yield from expect(tape, closing)
    if typed:
        arguments = {
            key: schemas.value(name, key, value) if isinstance(value, str) else value
            for key, value in arguments.items()
        }
    return [Call(name=name.strip(), arguments=arguments)]


def _object(tape: Tape, quote: str, closing: str, *, depth: int) -> Steps[dict[str, Any]]:
    """Pairs after a brace, up to the one that closes it."""
    found: dict[str, Any] = {}
    yield from tape.space()
    if (yield from tape.accept("}")):
        return found
    while True:
        key = yield from _key(tape, quote, closing)
        if key in found:
            raise Malformed(f"expected each name once, found {key!r} twice")
        found[key] = yield from _value(tape, quote, closing, depth=depth + 1)
        yield from tape.space()
        if (yield from tape.accept("}")):
            return found
        yield from expect(tape, ",")


def _key(tape: Tape, quote: str, closing: str) -> Steps[str]:
    yield from tape.space()
    if (yield from tape.accept(quote)):
        key = yield from _string(tape, quote)
        yield from expect(tape, ":")
        return key
    key, mark = yield from tape.until(":", closing, quote)
    if mark != ":":
        raise Malformed(f"expected ':' after the name {key[:60]!r}, found {mark or END!r}")
    return key.strip()


def _value(tape: Tape, quote: str, closing: str, *, depth: int) -> Steps[Any]:
    if depth > _DEEPEST:
        raise Malformed(f"expected at most {_DEEPEST} levels")
    yield from tape.space()
    if (yield from tape.accept(quote)):
        return (yield from _string(tape, quote))
    if (yield from tape.accept("{")):
        return (yield from _object(tape, quote, closing, depth=depth))
    if (yield from tape.accept("[")):
        return (yield from _array(tape, quote, closing, depth=depth))
    text, mark = yield from tape.until(",", "}", "]", closing, quote)
    tape.put_back(mark)
    text = text.strip()
    return loads(_PYTHON.get(text, text))


def _array(tape: Tape, quote: str, closing: str, *, depth: int) -> Steps[list[Any]]:
    found: list[Any] = []
    yield from tape.space()
    if (yield from tape.accept("]")):
        return found
    while True:
        found.append((yield from _value(tape, quote, closing, depth=depth + 1)))
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
    return CallSyntax(opening=opening, closing=closing, read=partial(_read, quote=quote, closing=closing, typed=typed))


GEMMA4 = _between("<|tool_call>", "<tool_call|>", quote='<|"|>', typed=False)
FUNCTIONGEMMA = _between("<start_function_call>", "<end_function_call>", quote="<escape>", typed=True)
