"""Calls in a section, each with its id: `functions.name:0`, then the arguments as JSON. Kimi K2 to K2.6.

The id names the function; it is kept as it stands, because the template writes it back.
"""

import re
from collections.abc import Sequence

from miles_tito.parsers.calls import Call, Malformed
from miles_tito.parsers.json_body import END, expect, json_object, json_value
from miles_tito.parsers.marked import CallSyntax
from miles_tito.parsers.schemas import Schemas
from miles_tito.parsers.tape import Steps, Tape

_OPENING, _ARGUMENTS, _CLOSING = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_IDENTITY = re.compile(r"(?:functions\.)?(?P<name>[^\s:]*[^\s:.]):\d+")


def _read(tape: Tape, schemas: Schemas) -> Steps[Sequence[Call]]:
    text, mark = yield from tape.until(_ARGUMENTS, _CLOSING, _OPENING)
    if mark != _ARGUMENTS:
        raise Malformed(f"expected {_ARGUMENTS}, found {mark or END!r}")
    identity = text.strip()
    found = _IDENTITY.fullmatch(identity)
    if found is None:
        raise Malformed(f"expected an id like functions.name:0, found {identity[:60]!r}")
    value = yield from json_value(tape)
    yield from expect(tape, _CLOSING)
    return [Call(name=found["name"], arguments=json_object(value), identity=identity)]


KIMI_K2 = CallSyntax(
    opening=_OPENING,
    closing=_CLOSING,
    read=_read,
    section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    lone=True,
)
