"""`[TOOL_CALLS]` before an array of calls with their ids, or before each call's name, id and arguments."""

from collections.abc import Sequence

from miles_tito.parsers.calls import Call, Malformed
from miles_tito.parsers.json_body import END, calls_of, json_object, json_value
from miles_tito.parsers.marked import CallSyntax
from miles_tito.parsers.schemas import Schemas
from miles_tito.parsers.tape import Steps, Tape

_OPENING = "[TOOL_CALLS]"


def _read(tape: Tape, schemas: Schemas) -> Steps[Sequence[Call]]:
    yield from tape.space()
    if (yield from tape.peek()) in ("[", "{"):
        return calls_of((yield from json_value(tape)), ids=("id",))
    name, mark = yield from tape.until("[CALL_ID]", "[ARGS]", "{", "\n", _OPENING)
    identity = None
    if mark == "[CALL_ID]":
        identity, mark = yield from tape.until("[ARGS]", "{", "\n", _OPENING)
    if mark == "{":
        tape.put_back(mark)
    elif mark != "[ARGS]":
        raise Malformed(f"expected [ARGS] after the name {name[:60]!r}, found {mark or END!r}")
    value = yield from json_value(tape)
    return [Call(name=name.strip(), arguments=json_object(value), identity=identity and identity.strip())]


MISTRAL = CallSyntax(opening=_OPENING, read=_read)
