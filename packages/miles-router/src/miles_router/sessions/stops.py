"""Stop texts: the engine ends the answer at one; its tokens stay on record, its text is no part of the message."""

from collections.abc import Mapping, Sequence
from typing import Any

Delta = Mapping[str, Any]

TEXTS = ("reasoning_content", "content")
"""Fields of a message that hold text, in the order in which it is sampled."""


def cut_message(message: Mapping[str, Any], stop: str) -> Mapping[str, Any]:
    """The message without the stop text and what the same token spelled after it."""
    for name in TEXTS:
        text = message.get(name) or ""
        if text and (at := text.find(stop)) >= 0:
            return {**message, name: text[:at]}
    return message


class StopFilter:
    """Keeps a stop text out of a stream of deltas: text that may begin one waits until it is certain.

    The deltas that come out spell the message that `cut_message` gives.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._name = ""
        self._held = ""
        self._after: list[Delta] | None = None
        """What came from the first stop text on, None while there was none."""

    def feed(self, deltas: Sequence[Delta]) -> list[Delta]:
        """The deltas that hold no stop text for certain."""
        if not self._stops:
            return list(deltas)
        certain: list[Delta] = []
        for delta in deltas:
            name = next((name for name in TEXTS if delta.get(name)), None)
            if self._after is not None:
                self._after.append(delta)
            elif name is None:
                certain += [*self._release(), delta]
            else:
                certain += self._text(name, delta[name])
        return certain

    def finish(self, *, stopped: bool) -> list[Delta]:
        """What waited. stopped: the engine says that a stop text ended the answer, so it is left out."""
        if self._after is not None:
            return [] if stopped else self._after
        return self._release()

    def _text(self, name: str, text: str) -> list[Delta]:
        certain: list[Delta] = self._release() if name != self._name else []
        self._name, text, self._held = name, self._held + text, ""
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            cut = min(found)
            self._after = [{name: text[cut:]}]
        else:
            cut = len(text) - _begun(text, self._stops)
            self._held = text[cut:]
        return [*certain, {name: text[:cut]}] if cut else certain

    def _release(self) -> list[Delta]:
        held, self._held = self._held, ""
        return [{self._name: held}] if held else []


def _begun(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of the text that begins a stop text."""
    longest = max(map(len, stops))
    for length in range(min(longest - 1, len(text)), 0, -1):
        if any(stop.startswith(text[-length:]) for stop in stops):
            return length
    return 0
