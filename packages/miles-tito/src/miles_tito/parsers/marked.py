"""Turns in which calls stand between marks: reasoning first, then content with calls in it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from miles_tito.parsers.calls import Call, Malformed, NotACall
from miles_tito.parsers.message import Turn
from miles_tito.parsers.schemas import Schemas
from miles_tito.parsers.tape import Steps, Tape


class TurnSyntax(Protocol):
    """How a turn is written."""

    def read_turn(
        self, tape: Tape, turn: Turn, *, reasoning: tuple[str, str], reasoning_open: bool, schemas: Schemas
    ) -> Steps[None]:
        """Read the whole turn. reasoning: the marks around it, empty for none. schemas: of the tools given."""
        ...


Reader = Callable[[Tape, Schemas], Steps[Sequence[Call]]]
"""Reads the body of one call (or of a list of calls) and the mark that closes it; `Malformed` where it cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSyntax:
    """Calls between an opening and a closing mark; `opening=""` knows no calls.

    read: the body after the opening mark. closing: where a call that cannot be read ends, unless the next opens before.
    section: marks around a run of calls; the opening mark counts only inside. lone: it counts outside as well.
    bare: a mark with which models open a call whose opening mark they forgot; `read_bare` reads after it.
    start: a character that opens a call where it is the first of the content; `read_start` reads from there.
    silent: marks around the content, which are no part of it.
    tell: what a template must write for this name to be its format, where another name reads the same calls.

    An opening mark opens a call wherever it stands in the content; content that merely mentions it gives a call that
    cannot be read, with its text. In reasoning it is text, and so are reasoning's own marks once content began.
    """

    opening: str = ""
    closing: str = ""
    read: Reader | None = None
    section: tuple[str, str] = ("", "")
    lone: bool = False
    bare: str = ""
    read_bare: Reader | None = None
    start: str = ""
    read_start: Reader | None = None
    silent: tuple[str, ...] = ()
    tell: str = ""

    def read_turn(
        self, tape: Tape, turn: Turn, *, reasoning: tuple[str, str], reasoning_open: bool, schemas: Schemas
    ) -> Steps[None]:
        """Reasoning, then content and calls until the end."""
        blank = "" if reasoning_open else (yield from tape.space())
        if reasoning_open or (reasoning[0] and (yield from tape.accept(reasoning[0]))):
            yield from _read_reasoning(tape, turn, reasoning[1])
            blank = yield from tape.space()
        elif reasoning[1] and (yield from tape.accept(reasoning[1])):
            # The reasoning was closed before anything was written of it.
            turn.mark(forget=True)
            blank = yield from tape.space()
        if self.read_start is not None and (yield from tape.peek()) == self.start:
            tape.record()
            blank = yield from self._read_calls(tape, turn, schemas, self.read_start, "", before=blank)
        turn.write("content", blank)
        yield from self._read_content(tape, turn, schemas)
        turn.end("content")

    def _read_content(self, tape: Tape, turn: Turn, schemas: Schemas) -> Steps[None]:
        inside = not self.section[0]
        while True:
            calls = (self.opening, self.bare) if inside or self.lone else ()
            text, mark = yield from tape.some(*calls, *self.silent, self.section[1] if inside else self.section[0])
            turn.write("content", text)
            if mark == "":
                return
            if mark is None:
                continue
            turn.mark()
            read = {self.opening: self.read, self.bare: self.read_bare}.get(mark)
            if read is not None:
                tape.record()
                yield from self._read_calls(tape, turn, schemas, read, mark)
            elif mark not in self.silent:
                inside = mark == self.section[0]

    def _read_calls(
        self, tape: Tape, turn: Turn, schemas: Schemas, read: Reader, opening: str, *, before: str = ""
    ) -> Steps[str]:
        """Read calls, or keep their text. The result is what stood before them if they are content after all."""
        try:
            for call in (yield from read(tape, schemas)):
                turn.call(call)
            before = ""
        except NotACall:
            tape.rewind()
        except Malformed as error:
            tape.rewind()
            body, closing = yield from self._read_raw(tape)
            turn.reject(body=body, raw=opening + body + closing, error=str(error))
            before = ""
        tape.forget()
        return before

    def _read_raw(self, tape: Tape) -> Steps[tuple[str, str]]:
        """Text of a call that cannot be read, and its closing mark if that comes before the next call."""
        body, mark = yield from tape.until(self.closing, self.opening, self.section[1])
        if mark and mark == self.closing:
            return body, mark
        tape.put_back(mark)
        return body, ""


def _read_reasoning(tape: Tape, turn: Turn, closing: str) -> Steps[None]:
    turn.mark(forget=True)
    while True:
        text, mark = yield from tape.some(closing)
        turn.write("reasoning_content", text)
        if mark == "":
            turn.end("reasoning_content")
        if mark is not None:
            turn.mark(forget=True)
            return


NO_CALLS = CallSyntax()
