"""`{"name": ..., "parameters": {...}}` as the whole content, or after `<|python_tag|>`. Llama 3.1 to 3.3.

Several calls are parted by semicolons. A JSON object without a name and parameters that opens the content is content.
"""

from collections.abc import Sequence

from miles_tito.parsers.calls import Call, Malformed, NotACall
from miles_tito.parsers.json_body import call_of, json_value
from miles_tito.parsers.marked import CallSyntax
from miles_tito.parsers.schemas import Schemas
from miles_tito.parsers.tape import Steps, Tape

_ARGUMENTS = ("parameters", "arguments")


def _read(tape: Tape, schemas: Schemas) -> Steps[Sequence[Call]]:
    calls = [call_of((yield from json_value(tape)), arguments=_ARGUMENTS)]
    while (yield from _another(tape)):
        calls.append(call_of((yield from json_value(tape)), arguments=_ARGUMENTS))
    return calls


def _read_start(tape: Tape, schemas: Schemas) -> Steps[Sequence[Call]]:
    try:
        value = yield from json_value(tape)
    except Malformed as error:
        if tape.taken().lstrip().removeprefix("{").lstrip().startswith('"name"'):
            raise
        raise NotACall(str(error)) from error
    if not isinstance(value, dict) or not any({"name", key} == value.keys() - {"type"} for key in _ARGUMENTS):
        raise NotACall("expected a name and parameters")
    calls = [call_of(value, arguments=_ARGUMENTS)]
    if (yield from _another(tape)):
        calls += yield from _read(tape, schemas)
    return calls


def _another(tape: Tape) -> Steps[bool]:
    yield from tape.space()
    return (yield from tape.accept(";"))


LLAMA3_JSON = CallSyntax(opening="<|python_tag|>", read=_read, start="{", read_start=_read_start)
