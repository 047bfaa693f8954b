"""`<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`: GLM-4.5 to 5.

GLM-4.5 writes a newline between the parts, GLM-4.7 none; both are read either way.
"""

from collections.abc import Sequence
from typing import Any

from miles_tito.parsers.calls import Call, Malformed
from miles_tito.parsers.json_body import END, expect
from miles_tito.parsers.marked import CallSyntax
from miles_tito.parsers.schemas import Schemas
from miles_tito.parsers.tape import Steps, Tape

_OPENING, _CLOSING = "<tool_call>", "</tool_call>"


def _read(tape: Tape, schemas: Schemas) -> Steps[Sequence[Call]]:
    text, mark = yield from tape.until("<arg_key>", _CLOSING, "<arg_value>", _OPENING)
    name = text.strip()
    if not name or any(character.isspace() or character in '<>{}"' for character in name):
        raise Malformed(f"expected the name of a function, found {name[:60]!r}")
    arguments: dict[str, Any] = {}
    while mark == "<arg_key>":
        key = (yield from _upto(tape, "</arg_key>", inside=("<arg_key>", "<arg_value>", _CLOSING, _OPENING))).strip()
        if key in arguments:
            raise Malformed(f"expected each parameter once, found {key!r} twice")
        yield from expect(tape, "<arg_value>")
        # A value may hold the closing mark of a call; a key inside it says that it was never closed.
        value = yield from _upto(tape, "</arg_value>", inside=("<arg_key>",))
        arguments[key] = schemas.value(name, key, value)
        between, mark = yield from tape.until("<arg_key>", _CLOSING, _OPENING)
        if between.strip():
            raise Malformed(f"expected <arg_key> or {_CLOSING}, found {between.strip()[:60]!r}")
    if mark != _CLOSING:
        raise Malformed(f"expected {_CLOSING}, found {mark or END!r}")
    return [Call(name=name, arguments=arguments)]


def _upto(tape: Tape, closing: str, *, inside: Sequence[str]) -> Steps[str]:
    text, mark = yield from tape.until(closing, *inside)
    if mark != closing:
        raise Malformed(f"expected {closing}, found {mark or END!r}")
    return text


GLM45 = CallSyntax(opening=_OPENING, closing=_CLOSING, read=_read, tell="</arg_key>\n<arg_value>")
GLM47 = CallSyntax(opening=_OPENING, closing=_CLOSING, read=_read)
