"""`<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`.

Qwen3-Coder, Qwen3.5, Nemotron 3 and Step 3.5 write a newline after and before each value, which is not part of it;
Seed-OSS writes none. Qwen3-Coder at times forgets `<tool_call>` before its first function: such a call is read all the
same.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from miles_tito.parsers.calls import Call, Malformed
from miles_tito.parsers.json_body import END, expect
from miles_tito.parsers.marked import CallSyntax
from miles_tito.parsers.schemas import Schemas
from miles_tito.parsers.tape import Steps, Tape

_FUNCTION, _PARAMETER = "<function=", "<parameter="


def _read(tape: Tape, schemas: Schemas, *, closing: str, padded: bool) -> Steps[Sequence[Call]]:
    yield from expect(tape, _FUNCTION)
    calls = yield from _read_function(tape, schemas, closing=closing, padded=padded)
    yield from expect(tape, closing)
    return calls


def _read_bare(tape: Tape, schemas: Schemas, *, closing: str, padded: bool) -> Steps[Sequence[Call]]:
    """A function without the opening mark around it; the closing one may be there."""
    calls = yield from _read_function(tape, schemas, closing=closing, padded=padded)
    yield from tape.space()
    yield from tape.accept(closing)
    return calls


def _read_function(tape: Tape, schemas: Schemas, *, closing: str, padded: bool) -> Steps[Sequence[Call]]:
    name = yield from _name(tape)
    arguments: dict[str, Any] = {}
    while True:
        yield from tape.space()
        if not (yield from tape.accept(_PARAMETER)):
            break
        key = yield from _name(tape)
        if key in arguments:
            raise Malformed(f"expected each parameter once, found {key!r} twice")
        text = yield from _value(tape, key)
        arguments[key] = schemas.value(name, key, _unpadded(text) if padded else text)
    yield from expect(tape, "</function>")
    return [Call(name=name, arguments=arguments)]


def _name(tape: Tape) -> Steps[str]:
    name, mark = yield from tape.until(">", "<", "\n")
    if mark != ">":
        raise Malformed(f"expected '>' after the name {name[:60]!r}, found {mark or END!r}")
    return name


def _value(tape: Tape, key: str) -> Steps[str]:
    """Text up to the parameter's end, which may hold the marks around a call.

    Where another parameter or function begins before the end, or the turn is over, it was never closed.
    """
    text, mark = yield from tape.until("</parameter>", _PARAMETER, _FUNCTION)
    if mark != "</parameter>":
        raise Malformed(f"expected </parameter> for {key!r}, found {mark or END!r}")
    return text


def _unpadded(text: str) -> str:
    return text.removeprefix("\n").removesuffix("\n")


def _between(opening: str, closing: str, *, padded: bool) -> CallSyntax:
    return CallSyntax(
        opening=opening,
        closing=closing,
        read=partial(_read, closing=closing, padded=padded),
        bare=_FUNCTION,
        read_bare=partial(_read_bare, closing=closing, padded=padded),
    )


QWEN3_CODER = _between("<tool_call>", "</tool_call>", padded=True)
SEED_OSS = _between("<seed:tool_call>", "</seed:tool_call>", padded=False)
