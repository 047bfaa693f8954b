"""Text that arrives in pieces, read forward by generators that pause where they need more.

A reader is a generator: it yields when the text so far does not decide what comes next, and is resumed after `feed`.
What it decides depends on the text alone, never on where the pieces were cut. Every character is looked at a bounded
number of times, whatever the size of the pieces.
"""

import re
from collections.abc import Generator
from functools import lru_cache
from typing import TypeVar

_T = TypeVar("_T")
Steps = Generator[None, None, _T]
"""A reading that pauses for more text and ends with a value."""


class Tape:
    """The text of one turn that was not read yet."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._ended = False
        self._stop = ""
        self._stopped = self._last_was_stop = False
        self._taken: list[str] = []
        self._recording = False
        self._recorded_from: int | None = None
        self.examined = 0
        """Characters looked at so far: the work done, in a unit that no machine's speed changes."""

    def feed(self, text: str) -> None:
        """More text."""
        self._text = self._text[self._at :] + text
        self._at = 0
        self._recorded_from = None

    def end(self, stop: str = "") -> None:
        """No more comes. stop: text of the stop token that ended the turn.

        The stop counts as a mark where a reader expects just this one, and is nothing elsewhere.
        """
        self._ended = True
        self._stop = stop

    def record(self) -> None:
        """Keep what is read from here on, until `forget`."""
        self._taken, self._recording = [], True
        self._recorded_from = self._at

    def taken(self) -> str:
        """What was read since `record`."""
        return "".join(self._taken)

    def rewind(self) -> None:
        """Go back to where `record` was called, and record anew."""
        if self._recorded_from is None:
            self._text = self.taken() + self._text[self._at :]
            self._recorded_from = 0
        self._at = self._recorded_from
        self._taken = []
        self._stopped = False

    def forget(self) -> None:
        """Stop keeping what is read."""
        self._taken, self._recording = [], False

    def put_back(self, mark: str) -> None:
        """Let the mark that was just taken be read again."""
        if not mark:
            return
        if self._last_was_stop:
            self._stopped = False
            return
        self._at -= len(mark)
        if self._recording:
            self._taken.pop()

    def some(self, *marks: str) -> Steps[tuple[str, str | None]]:
        """The text up to the first of the marks, and that mark.

        Where no mark is in sight yet, the text that can belong to none, and None. At the end of the turn the rest of
        the text, and "". Of two marks at one place the longer counts.
        """
        search = _search_for(marks)
        while True:
            found = search.first(self._text, self._at, ended=self._ended)
            self.examined += (found[1] if found else len(self._text)) - self._at
            if found is not None:
                text = self._take(found[0] - self._at)
                return text, self._take(found[1] - found[0])
            if self._ended:
                return self._take(len(self._text) - self._at), self._take_stop(marks)
            certain = search.certain(self._text, self._at)
            if certain > self._at:
                return self._take(certain - self._at), None
            yield

    def until(self, *marks: str) -> Steps[tuple[str, str]]:
        """All text up to the first of the marks, and that mark; "" for the mark where the turn ends before."""
        parts: list[str] = []
        while True:
            text, mark = yield from self.some(*marks)
            parts.append(text)
            if mark is not None:
                return "".join(parts), mark

    def through(self, characters: re.Pattern[str]) -> Steps[tuple[str, str]]:
        """All text before the first character that the pattern matches, and that character; "" at the end."""
        parts: list[str] = []
        while True:
            found = characters.search(self._text, self._at)
            end = len(self._text) if found is None else found.start()
            self.examined += end - self._at
            parts.append(self._take(end - self._at))
            if found is not None:
                return "".join(parts), self._take(1)
            if self._ended:
                return "".join(parts), ""
            yield

    def space(self) -> Steps[str]:
        """The white space that comes next, taken."""
        parts: list[str] = []
        while True:
            end = self._at
            while end < len(self._text) and self._text[end].isspace():
                end += 1
            self.examined += end - self._at
            parts.append(self._take(end - self._at))
            if self._at < len(self._text) or self._ended:
                return "".join(parts)
            yield

    def peek(self) -> Steps[str]:
        """The next character, left where it is; "" at the end."""
        while self._at == len(self._text) and not self._ended:
            yield
        return self._text[self._at : self._at + 1]

    def accept(self, text: str) -> Steps[bool]:
        """True, and the text is taken, where it comes next."""
        while True:
            size = min(len(text), len(self._text) - self._at)
            self.examined += size
            if size == 0 and self._ended:
                return bool(self._take_stop((text,)))
            if not self._text.startswith(text[:size], self._at) or (size < len(text) and self._ended):
                return False
            if size == len(text):
                self._take(size)
                return True
            yield

    def _take_stop(self, marks: tuple[str, ...]) -> str:
        if not self._stop or self._stopped or self._stop not in marks:
            return ""
        self._stopped = self._last_was_stop = True
        return self._stop

    def _take(self, size: int) -> str:
        text = self._text[self._at : self._at + size]
        self._at += size
        self._last_was_stop = False
        if self._recording and text:
            self._taken.append(text)
        return text


class _Search:
    """Looks for the first of some marks."""

    def __init__(self, marks: tuple[str, ...]) -> None:
        self._marks = sorted(set(marks) - {""}, key=len, reverse=True)
        self._any = re.compile("|".join(map(re.escape, self._marks)) or "(?!)")
        self._longest = max(map(len, self._marks), default=1)
        self._starts = {mark[0] for mark in self._marks}

    def first(self, text: str, start: int, *, ended: bool) -> tuple[int, int] | None:
        """Start and end of the first mark; None also while another may still grow at its place or before it."""
        found = self._any.search(text, start)
        if found is None or (not ended and self.certain(text, start) <= found.start()):
            return None
        return found.span()

    def certain(self, text: str, start: int) -> int:
        """Where the text begins that may become a mark; its length when there is none."""
        for place in range(max(start, len(text) - self._longest + 1), len(text)):
            if text[place] in self._starts and self._begins(text[place:]):
                return place
        return len(text)

    def _begins(self, rest: str) -> bool:
        return any(len(mark) > len(rest) and mark.startswith(rest) for mark in self._marks)


@lru_cache(maxsize=256)
def _search_for(marks: tuple[str, ...]) -> _Search:
    return _Search(marks)
