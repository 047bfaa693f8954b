"""`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen2.5, Qwen3, and many more."""

from collections.abc import Sequence

from miles_tito.parsers.calls import Call
from miles_tito.parsers.json_body import call_of, expect, json_value
from miles_tito.parsers.marked import CallSyntax
from miles_tito.parsers.schemas import Schemas
from miles_tito.parsers.tape import Steps, Tape

_OPENING, _CLOSING = "<tool_call>", "</tool_call>"


def _read(tape: Tape, schemas: Schemas) -> Steps[Sequence[Call]]:
    value = yield from json_value(tape)
    yield from expect(tape, _CLOSING)
    return [call_of(value)]


HERMES = CallSyntax(opening=_OPENING, closing=_CLOSING, read=_read)
