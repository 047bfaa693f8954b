"""The parser of one turn, fed piece by piece; feeding everything at once is the ordinary parse."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from miles_tito.intake import token_ids
from miles_tito.parsers.formats import TurnFormat
from miles_tito.parsers.message import Delta, Turn, join_deltas
from miles_tito.parsers.pieces import TextPieces
from miles_tito.parsers.schemas import Schemas
from miles_tito.parsers.tape import Tape

__all__ = ["Delta", "StreamParser", "join_deltas"]


class StreamParser:
    """Turns sampled ids (or text) into deltas of one assistant message.

    `join_deltas` of all deltas is the message that `parse` gives, however the turn was cut. A tool call is one delta,
    sent when it is complete; one that cannot be read has `"invalid": True` and its text under "raw". Newlines around
    reasoning and before a call belong to the format, not to the content. The stop token that ends the turn is not part
    of the message.

    reasoning_open: the generation prompt already opened the reasoning. tools: their schemas say the types of arguments
    in formats that write them as bare text. call_seed: makes the ids of calls that carry none.
    """

    def __init__(
        self,
        format: TurnFormat,
        *,
        decode: Callable[[Sequence[int]], str] | None = None,
        stop_ids: Collection[int] = (),
        reasoning_open: bool = False,
        call_seed: int | str = 0,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self._decode = decode
        self._pieces = TextPieces(decode) if decode else None
        self._stops = frozenset(stop_ids)
        self._held: list[int] = []
        self._turn = Turn(call_seed)
        self._tape = Tape()
        self._reading = format.syntax.read_turn(
            self._tape,
            self._turn,
            reasoning=format.reasoning,
            reasoning_open=reasoning_open and bool(format.reasoning[1]),
            schemas=Schemas(tools),
        )
        self._ended = False

    def feed(self, piece: Sequence[int] | str) -> list[Delta]:
        """Deltas that the new ids, or the new text, made certain; TokenError for ids that no model has."""
        if isinstance(piece, str):
            return self._advance(piece)
        if self._pieces is None:
            raise TypeError("expected text: this parser was made without a vocabulary to decode ids with.")
        # A stop ends the turn only where nothing follows, so the last one waits.
        ids = [*self._held, *token_ids(piece)]
        self._held = [ids.pop()] if ids and ids[-1] in self._stops else []
        return self._advance(self._pieces.feed(ids))

    def finish(self) -> list[Delta]:
        """The deltas of what was held back, when no more comes."""
        if self._pieces and self._decode:
            self._tape.feed(self._pieces.finish())
            self._tape.end(self._decode(self._held))
        else:
            self._tape.end()
        return self._advance("")

    def parse(self, piece: Sequence[int] | str) -> dict[str, Any]:
        """The message of a whole turn."""
        return join_deltas([*self.feed(piece), *self.finish()])

    def _advance(self, text: str) -> list[Delta]:
        self._tape.feed(text)
        if not self._ended:
            # The reading pauses where it needs more text, and ends with the turn.
            self._ended = next(self._reading, _END) is _END
        return self._turn.collected()


_END = object()
