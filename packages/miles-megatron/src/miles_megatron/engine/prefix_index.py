"""Which pages hold which prefixes: a chain of digests, least recently used pages given up first."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xxhash

from miles_megatron.engine.cache import PAGE


@dataclass(frozen=True, slots=True)
class _Entry:
    page: int
    ids: tuple[int, ...]


class PrefixIndex:
    """Pages by the digest of all up to and including them, under one set of weights: `clear` it when they change."""

    def __init__(self, pages: int) -> None:
        self._free = list(range(pages))
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def match(self, digests: Sequence[bytes], tokens: Sequence[int]) -> list[int]:
        """Pages of the longest known prefix of `tokens`, in order; `digests` are those of its full pages."""
        pages = []
        for number, digest in enumerate(digests):
            entry = self._entries.get(digest)
            if entry is None or entry.ids != tuple(tokens[number * PAGE : (number + 1) * PAGE]):
                break
            self._entries.move_to_end(digest)
            pages.append(entry.page)
        return pages

    def add(self, digests: Sequence[bytes], tokens: Sequence[int]) -> list[tuple[int, int]]:
        """Make room for the pages that are not known yet: `(number in the prefix, page to fill)` each."""
        places: list[tuple[int, int]] = []
        for number, digest in enumerate(digests):
            if digest in self._entries:
                self._entries.move_to_end(digest)
                continue
            page = self._take(set(digests[: number + 1]))
            if page is None:
                break
            self._entries[digest] = _Entry(page, tuple(tokens[number * PAGE : (number + 1) * PAGE]))
            places.append((number, page))
        return places

    def clear(self) -> None:
        """Forget every page."""
        self._free += [entry.page for entry in self._entries.values()]
        self._entries.clear()

    def _take(self, spared: set[bytes]) -> int | None:
        if self._free:
            return self._free.pop()
        for digest in self._entries:
            if digest not in spared:
                return self._entries.pop(digest).page
        return None


def extend_digests(digests: list[bytes], tokens: Sequence[int]) -> None:
    """Append the digests of the full pages of `tokens` that `digests` does not cover yet."""
    for number in range(len(digests), len(tokens) // PAGE):
        parent = digests[number - 1] if number else b""
        ids = np.asarray(tokens[number * PAGE : (number + 1) * PAGE], dtype=np.int64)
        digests.append(xxhash.xxh3_128_digest(parent + ids.tobytes()))
