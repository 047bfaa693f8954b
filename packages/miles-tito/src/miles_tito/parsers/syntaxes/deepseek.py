"""Calls in a section of control tokens: DeepSeek V3 and R1 with the name and a block of JSON, V3.1 with bare JSON."""

from collections.abc import Sequence

from miles_tito.parsers.calls import Call, Malformed
from miles_tito.parsers.json_body import END, expect, json_object, json_value
from miles_tito.parsers.marked import CallSyntax, Reader
from miles_tito.parsers.schemas import Schemas
from miles_tito.parsers.tape import Steps, Tape

_OPENING, _SEPARATOR, _CLOSING = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"


def _read_v31(tape: Tape, schemas: Schemas) -> Steps[Sequence[Call]]:
    name = yield from _upto_separator(tape)
    value = yield from json_value(tape)
    yield from expect(tape, _CLOSING)
    return [Call(name=name.strip(), arguments=json_object(value))]


def _read_v3(tape: Tape, schemas: Schemas) -> Steps[Sequence[Call]]:
    kind = yield from _upto_separator(tape)
    if kind.strip() != "function":
        raise Malformed(f"expected a call of type 'function', found {kind[:60]!r}")
    name, mark = yield from tape.until("\n", _CLOSING, _OPENING)
    if mark != "\n":
        raise Malformed(f"expected a newline after the name {name[:60]!r}, found {mark or END!r}")
    yield from expect(tape, "```json")
    value = yield from json_value(tape)
    yield from expect(tape, "```")
    yield from expect(tape, _CLOSING)
    return [Call(name=name.strip(), arguments=json_object(value))]


def _upto_separator(tape: Tape) -> Steps[str]:
    text, mark = yield from tape.until(_SEPARATOR, _CLOSING, _OPENING)
    if mark != _SEPARATOR:
        raise Malformed(f"expected {_SEPARATOR}, found {mark or END!r}")
    return text


def _syntax(read: Reader) -> CallSyntax:
    return CallSyntax(
        opening=_OPENING,
        closing=_CLOSING,
        read=read,
        section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        lone=True,
    )


DEEPSEEK_V3 = _syntax(_read_v3)
DEEPSEEK_V31 = _syntax(_read_v31)
