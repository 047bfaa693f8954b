"""Ids to text as they come, holding back what is not yet a whole character."""

from collections.abc import Callable, Sequence

_HALF = "\ufffd"
_LONGEST = 8
"""Ids that one character may be spread over: four bytes, and then some."""


class TextPieces:
    """Decodes a growing sequence of ids; the pieces joined do not depend on how the sequence was cut.

    decode: ids to text. Each piece ends at a whole character; a half one waits for the ids that complete it. Bytes that
    are no UTF-8 become U+FFFD. Every id is decoded a bounded number of times.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._context: list[int] = []
        self._shown = ""
        self._waiting: list[int] = []

    def feed(self, ids: Sequence[int]) -> str:
        """The text that became certain."""
        if not ids:
            return ""
        text = self._decode([*self._context, *self._waiting, *ids])
        if _HALF not in text:
            self._waiting += ids
            return self._settle(text)
        # Where a character is broken, what it decodes to may depend on the cut, so each id comes alone.
        return "".join(map(self._feed_one, ids))

    def finish(self) -> str:
        """The rest, when no more comes."""
        if not self._waiting:
            return ""
        text = self._decode([*self._context, *self._waiting])[len(self._shown) :]
        self._waiting = []
        return text

    def _feed_one(self, number: int) -> str:
        self._waiting.append(number)
        text = self._decode([*self._context, *self._waiting])
        if not text.endswith(_HALF):
            return self._settle(text)
        if len(self._waiting) < _LONGEST:
            return ""
        # Too long for one character: nothing can complete the first id any more.
        first, self._waiting = self._waiting[:1], self._waiting[1:]
        text = self._decode([*self._context, *first])[len(self._shown) :]
        self._context, self._shown = [], ""
        return text

    def _settle(self, text: str) -> str:
        """All ids so far are whole characters. The last of them stay as context: some decoders treat a start apart."""
        piece = text[len(self._shown) :]
        ids, self._waiting = [*self._context, *self._waiting], []
        for size in range(1, _LONGEST + 1):
            self._context = ids[-size:]
            self._shown = self._decode(self._context)
            if _HALF not in self._shown or size >= len(ids):
                break
        return piece
