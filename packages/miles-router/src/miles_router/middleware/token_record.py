"""Token ids that belong to a text, remembered in pieces that share their beginnings."""

from dataclasses import dataclass
from typing import Any

from miles_router.radix import RadixTree

TOKEN_BYTES = 80
"""What a remembered token takes: an int, perhaps a float, and their places in two tuples."""


@dataclass(frozen=True, slots=True)
class TokenPiece:
    """Tokens in a row of one origin. logprobs: one for each of them, when sampled and told; else None."""

    ids: tuple[int, ...]
    sampled: bool
    logprobs: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """The tokens of a text: those of the text that it continues, and one more piece."""

    before: "TokenRecord | None"
    piece: TokenPiece

    def pieces(self) -> list[TokenPiece]:
        """All pieces in order."""
        found: list[TokenPiece] = []
        record: TokenRecord | None = self
        while record is not None:
            found.append(record.piece)
            record = record.before
        return found[::-1]


class TokenRecords:
    """Records by their text; the least recently used are forgotten beyond `max_bytes`."""

    def __init__(self, *, max_bytes: int) -> None:
        self._tree = RadixTree(max_bytes=max_bytes)

    def longest(self, text: str) -> tuple[TokenRecord | None, str]:
        """The record of the longest known beginning of the text, and the rest of the text."""
        key = text.encode("utf-8", "surrogatepass")
        length, record = self._tree.longest(key)
        return record, key[length:].decode("utf-8", "surrogatepass")

    def add(self, text: str, record: TokenRecord) -> None:
        """Remember the tokens of a text."""
        cost = TOKEN_BYTES * len(record.piece.ids)
        self._tree.insert(text.encode("utf-8", "surrogatepass"), record, cost=cost)


def columns(pieces: list[TokenPiece]) -> dict[str, list[Any]]:
    """`tokens`, `loss_mask` (1 for sampled) and `logprobs` (null where none was told), all of one length."""
    tokens: list[int] = []
    mask: list[int] = []
    logprobs: list[float | None] = []
    for piece in pieces:
        tokens += piece.ids
        mask += [int(piece.sampled)] * len(piece.ids)
        logprobs += piece.logprobs if piece.logprobs is not None else [None] * len(piece.ids)
    return {"tokens": tokens, "loss_mask": mask, "logprobs": logprobs}
