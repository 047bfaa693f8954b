"""gpt-oss: a turn is a run of messages, each with a channel and perhaps a recipient.

The turn begins after `<|start|>assistant`. `analysis` is reasoning, `final` and `commentary` are content, a message to
a recipient is a call. `<|end|>` parts messages; the turn ends with `<|return|>` or `<|call|>`, or where it was cut.
"""

import re
from dataclasses import dataclass
from typing import Any

from miles_tito.parsers.calls import Call, Malformed
from miles_tito.parsers.json_body import json_object, json_value
from miles_tito.parsers.message import Part, Turn
from miles_tito.parsers.schemas import Schemas
from miles_tito.parsers.tape import Steps, Tape

_MESSAGE = "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_START = "<|start|>"
_HEADER = re.compile(
    r"\s*+(?:<\|start\|>assistant)?\s*+(?:to=(?P<before>[^\s<]++))?\s*+"
    r"<\|channel\|>(?P<channel>analysis|commentary|final)\b\s*+(?:to=(?P<after>[^\s<]++))?\s*+"
    r"(?:<\|constrain\|>)?\s*+[a-z]*+\s*+"
)
"""Possessive throughout: a header that does not match is given up at once, however long it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Harmony:
    """Reads a turn of channels; reasoning's marks are its own."""

    def read_turn(
        self, tape: Tape, turn: Turn, *, reasoning: tuple[str, str], reasoning_open: bool, schemas: Schemas
    ) -> Steps[None]:
        """Message by message until the turn ends."""
        while True:
            header, mark = yield from tape.until(_MESSAGE, *_ENDS)
            if mark != _MESSAGE:
                # No message began: the text has no channel, and whatever it is must not be lost.
                _write_stray(turn, header)
                if not mark:
                    return
                continue
            found = _HEADER.fullmatch(header)
            if found is None:
                yield from _read_unknown(tape, turn, header + mark)
            elif recipient := found["before"] or found["after"]:
                yield from _read_call(tape, turn, header + mark, recipient)
            else:
                analysis = found["channel"] == "analysis"
                yield from _read_text(tape, turn, "reasoning_content" if analysis else "content")


def _write_stray(turn: Turn, text: str) -> None:
    if text.strip():
        turn.begin("content")
        turn.write("content", text)
        turn.end("content")


def _read_unknown(tape: Tape, turn: Turn, opening: str) -> Steps[None]:
    """A message whose header says nothing known: content if it goes to nobody, else a call that cannot be read."""
    if "to=" in opening:
        body, end = yield from tape.until(*_ENDS)
        turn.reject(body=body, raw=opening + body + end, error=f"expected a channel, found {opening[:60]!r}")
    else:
        yield from _read_text(tape, turn, "content", opening)


def _read_text(tape: Tape, turn: Turn, part: Part, opening: str = "") -> Steps[None]:
    turn.begin(part)
    turn.write(part, opening)
    while True:
        text, mark = yield from tape.some(*_ENDS, _START)
        turn.write(part, text)
        if mark == _START:
            tape.put_back(_START)
        if mark is not None:
            turn.end(part)
            return


def _read_call(tape: Tape, turn: Turn, opening: str, recipient: str) -> Steps[None]:
    tape.record()
    try:
        arguments = yield from _arguments(tape)
        turn.call(Call(name=recipient.removeprefix("functions."), arguments=arguments))
    except Malformed as error:
        tape.rewind()
        body, end = yield from tape.until(*_ENDS)
        turn.reject(body=body, raw=opening + body + end, error=str(error))
    tape.forget()


def _arguments(tape: Tape) -> Steps[dict[str, Any]]:
    value = yield from json_value(tape)
    rest, _ = yield from tape.until(*_ENDS)
    if rest.strip():
        raise Malformed(f"expected <|call|> after the arguments, found {rest.strip()[:60]!r}")
    return json_object(value)


HARMONY = Harmony()
