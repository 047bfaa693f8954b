"""`<|tools_prefix|>[{"name": {arguments}}, ...]<|tools_suffix|>`: the function's name is the key."""

from collections.abc import Sequence
from typing import Any

from miles_tito.parsers.calls import Call, Malformed
from miles_tito.parsers.json_body import expect, json_object, json_value
from miles_tito.parsers.marked import CallSyntax
from miles_tito.parsers.schemas import Schemas
from miles_tito.parsers.tape import Steps, Tape

_CLOSING = "<|tools_suffix|>"


def _read(tape: Tape, schemas: Schemas) -> Steps[Sequence[Call]]:
    value = yield from json_value(tape)
    yield from expect(tape, _CLOSING)
    if not isinstance(value, list) or not value:
        raise Malformed("expected an array of calls")
    return [_call(item) for item in value]


def _call(item: Any) -> Call:
    if not isinstance(item, dict) or len(item) != 1:
        raise Malformed("expected an object with the function's name as its only key")
    ((name, arguments),) = item.items()
    return Call(name=name, arguments=json_object(arguments))


APERTUS = CallSyntax(opening="<|tools_prefix|>", closing=_CLOSING, read=_read)
