"""The assistant message as it grows, in OpenAI's streaming shape."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

from miles_tito.parsers.calls import Call, call_id, function_call, invalid_call

Delta = dict[str, Any]
"""A piece of an assistant message in OpenAI's streaming shape: `content`, `reasoning_content` or `tool_calls`."""
Part = Literal["content", "reasoning_content"]


class Turn:
    """Collects the deltas of one turn.

    Newlines beside a mark belong to the format: those before it are held back, those after it dropped. Newlines on one
    side of a call come back when content follows the call, so that words before and after it stay apart.
    """

    def __init__(self, call_seed: int | str) -> None:
        self._seed = call_seed
        self._deltas: list[Delta] = []
        self._calls = 0
        self._held: list[str] = []
        self._after_mark = False
        self._keeps_after = False
        self._wrote: set[Part] = set()

    def collected(self) -> list[Delta]:
        """The deltas since the last time, texts that follow each other as one."""
        found, self._deltas = self._deltas, []
        merged: list[Delta] = []
        for part, group in groupby(found, key=_text_part):
            run = list(group)
            merged += [{part: "".join(delta[part] for delta in run)}] if part else run
        return merged

    def write(self, part: Part, text: str) -> None:
        """Text of the content or of the reasoning."""
        if self._after_mark:
            kept = text.lstrip("\n")
            if self._keeps_after:
                self._hold(text[: len(text) - len(kept)])
            text = kept
        if not text:
            return
        self._after_mark = False
        body = text.rstrip("\n")
        if body:
            self._wrote.add(part)
            self._deltas.append({part: self._released() + body})
        self._hold(text[len(body) :])

    def mark(self, *, forget: bool = False) -> None:
        """A mark stands here. forget: newlines before it never come back (reasoning ended)."""
        self._after_mark = True
        forget = forget or "content" not in self._wrote
        if forget:
            self._held = []
        self._keeps_after = not forget and not self._held

    def begin(self, part: Part) -> None:
        """A text begins that is one of several of this part: a newline stands between them."""
        self._held = ["\n"] if part in self._wrote else []
        self._after_mark = self._keeps_after = False

    def end(self, part: Part) -> None:
        """The turn is over: newlines that end a text are text, those after a mark are not."""
        rest = self._released()
        if rest and not self._after_mark:
            self._deltas.append({part: rest})

    def call(self, call: Call) -> None:
        """A call that was read."""
        self._add_call(function_call(call, self._identity()))

    def reject(self, *, body: str, raw: str, error: str) -> None:
        """A call that could not be read. body: what stood between its marks. raw: all of its text."""
        self._add_call(invalid_call(self._identity(), body, raw, error))

    def _hold(self, newlines: str) -> None:
        if newlines:
            self._held.append(newlines)

    def _released(self) -> str:
        held, self._held = self._held, []
        return "".join(held)

    def _identity(self) -> str:
        return call_id(self._seed, self._calls)

    def _add_call(self, call: dict[str, Any]) -> None:
        self._deltas.append({"tool_calls": [{"index": self._calls, **call}]})
        self._calls += 1
        self.mark()


def _text_part(delta: Delta) -> str | None:
    return next((part for part in ("content", "reasoning_content") if part in delta), None)


def join_deltas(deltas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The assistant message that the deltas spell."""
    texts: dict[str, list[str]] = {"content": [], "reasoning_content": []}
    calls: list[dict[str, Any]] = []
    for delta in deltas:
        for part, pieces in texts.items():
            if delta.get(part):
                pieces.append(delta[part])
        calls += [
            {key: value for key, value in call.items() if key != "index"} for call in delta.get("tool_calls") or ()
        ]
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts["content"])}
    if texts["reasoning_content"]:
        message["reasoning_content"] = "".join(texts["reasoning_content"])
    if calls:
        message["tool_calls"] = calls
    return message
