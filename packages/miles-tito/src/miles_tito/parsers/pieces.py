"""Ids to text as they come, holding back what is not yet a whole character."""

from collections.abc import Callable, Sequence


class TextPieces:
    """Decodes a growing sequence of ids; the pieces joined are the decoded whole.

    decode: ids to text. Each piece ends at a whole character; a half one waits for the ids that complete it.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._known = 0
        self._shown = ""

    def feed(self, ids: Sequence[int]) -> str:
        """The text that became certain."""
        self._ids += ids
        return self._advance(final=False)

    def finish(self) -> str:
        """The rest; bytes that never became a character are U+FFFD."""
        return self._advance(final=True)

    def _advance(self, *, final: bool) -> str:
        if not self._ids:
            return ""
        text = self._decode(self._ids)
        if not final and text.endswith("\ufffd"):
            return ""
        piece = text[len(self._shown) :]
        # The last id stays as context: some decoders treat the first id of a text differently.
        self._ids = self._ids[-1:]
        self._shown = self._decode(self._ids)
        return piece
