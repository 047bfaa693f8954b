"""The parser of one turn, fed piece by piece; feeding everything at once is the ordinary parse."""

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from typing import Any

from miles_tito.parsers.calls import call_id, invalid_call, read_call
from miles_tito.parsers.formats import TurnFormat
from miles_tito.parsers.pieces import TextPieces

Delta = dict[str, Any]
"""A piece of an assistant message in OpenAI's streaming shape: `content`, `reasoning_content` or `tool_calls`."""


class _State(Enum):
    CONTENT = "content"
    REASONING = "reasoning"
    CALL = "call"


class StreamParser:
    """Turns sampled ids (or text) into deltas of one assistant message.

    `join_deltas` of all deltas is the message that `parse` gives. A tool call is one delta, sent when it is complete;
    one that cannot be read has `"invalid": True` and its text under "raw". Newlines around reasoning and before a call
    belong to the format, not to the content. The stop token that ends the turn is not part of the message.

    reasoning_open: the generation prompt already opened the reasoning.
    """

    def __init__(
        self,
        format: TurnFormat,
        *,
        decode: Callable[[Sequence[int]], str] | None = None,
        stop_ids: Collection[int] = (),
        reasoning_open: bool = False,
        call_seed: int | str = 0,
    ) -> None:
        self._format = format
        self._pieces = TextPieces(decode) if decode else None
        self._stops = frozenset(stop_ids)
        self._held: list[int] = []
        self._seed = call_seed
        self._state = _State.REASONING if reasoning_open and format.reasoning[1] else _State.CONTENT
        self._may_reason = self._state is _State.CONTENT and bool(format.reasoning[0])
        self._buffer = ""
        self._space = ""
        self._after_mark = self._state is _State.REASONING
        self._calls = 0

    def feed(self, piece: Sequence[int] | str) -> list[Delta]:
        """Deltas that the new ids, or the new text, made certain."""
        if isinstance(piece, str):
            return self._consume(piece, final=False)
        if self._pieces is None:
            raise TypeError("expected text: this parser was made without a vocabulary to decode ids with.")
        # A stop ends the turn only where nothing follows, so the last one waits.
        ids = [*self._held, *piece]
        self._held = [ids.pop()] if ids and ids[-1] in self._stops else []
        return self._consume(self._pieces.feed(ids), final=False)

    def finish(self) -> list[Delta]:
        """The deltas of what was held back, when no more comes."""
        rest = self._pieces.finish() if self._pieces else ""
        return self._consume(rest, final=True)

    def parse(self, piece: Sequence[int] | str) -> dict[str, Any]:
        """The message of a whole turn."""
        return join_deltas([*self.feed(piece), *self.finish()])

    def _consume(self, text: str, *, final: bool) -> list[Delta]:
        self._buffer += text
        deltas: list[Delta] = []
        while self._step(deltas, final=final):
            pass
        return deltas

    def _step(self, deltas: list[Delta], *, final: bool) -> bool:
        """One move of the machine; False when it needs more text."""
        if self._state is _State.CALL:
            return self._step_call(deltas, final=final)
        marks = self._marks()
        at, mark = _first_of(self._buffer, marks)
        if mark is None:
            keep = 0 if final else _partial_suffix(self._buffer, marks)
            cut = len(self._buffer) - keep
            self._emit(deltas, self._buffer[:cut])
            self._buffer = self._buffer[cut:]
            if final:
                self._flush_space(deltas)
            return False
        if mark == self._format.reasoning[0] and (self._space + self._buffer[:at]).strip():
            # Reasoning opens a turn or does not open at all; later the mark is ordinary text.
            self._may_reason = False
            return True
        self._emit(deltas, self._buffer[:at])
        self._buffer = self._buffer[at + len(mark) :]
        self._enter(mark)
        return True

    def _marks(self) -> tuple[str, ...]:
        opening, closing = self._format.reasoning
        if self._state is _State.REASONING:
            return (closing,)
        marks = (self._format.call[0], opening if self._may_reason else "")
        return tuple(mark for mark in marks if mark)

    def _enter(self, mark: str) -> None:
        self._space, self._after_mark, self._may_reason = "", True, False
        if mark == self._format.call[0]:
            self._state = _State.CALL
        elif self._state is _State.REASONING:
            self._state = _State.CONTENT
        else:
            self._state = _State.REASONING

    def _step_call(self, deltas: list[Delta], *, final: bool) -> bool:
        opening, closing = self._format.call
        at = self._buffer.find(closing)
        if at < 0 and not final:
            return False
        identity = call_id(self._seed, self._calls)
        if at < 0:
            call = invalid_call(
                identity, self._buffer, opening + self._buffer, f"expected {closing}, found the end of the turn"
            )
            self._buffer = ""
        else:
            body = self._buffer[:at]
            call = read_call(body, identity=identity, raw=opening + body + closing)
            self._buffer = self._buffer[at + len(closing) :]
        deltas.append({"tool_calls": [{"index": self._calls, **call}]})
        self._calls += 1
        self._state, self._space, self._after_mark = _State.CONTENT, "", True
        return True

    def _emit(self, deltas: list[Delta], text: str) -> None:
        """Newlines after a mark are dropped; those at the end of a part wait until something follows them."""
        if self._after_mark:
            text = text.lstrip("\n")
        if not text:
            return
        self._after_mark = False
        whole = self._space + text
        if self._may_reason and not whole.strip():
            self._space = whole
            return
        self._may_reason = False
        body = whole.rstrip("\n")
        self._space = whole[len(body) :]
        if body:
            _add_text(deltas, self._key(), body)

    def _flush_space(self, deltas: list[Delta]) -> None:
        if self._space:
            _add_text(deltas, self._key(), self._space)
        self._space = ""

    def _key(self) -> str:
        return "reasoning_content" if self._state is _State.REASONING else "content"


def join_deltas(deltas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The assistant message that the deltas spell."""
    content, reasoning = "", None
    calls: list[dict[str, Any]] = []
    for delta in deltas:
        content += delta.get("content") or ""
        if delta.get("reasoning_content"):
            reasoning = (reasoning or "") + delta["reasoning_content"]
        calls += [
            {key: value for key, value in call.items() if key != "index"} for call in delta.get("tool_calls") or ()
        ]
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def _add_text(deltas: list[Delta], key: str, text: str) -> None:
    if deltas and set(deltas[-1]) == {key}:
        deltas[-1] = {key: deltas[-1][key] + text}
    else:
        deltas.append({key: text})


def _first_of(text: str, marks: Sequence[str]) -> tuple[int, str | None]:
    found = [(text.find(mark), mark) for mark in marks if mark in text]
    return min(found) if found else (-1, None)


def _partial_suffix(text: str, marks: Sequence[str]) -> int:
    """Length of the longest end of the text that begins one of the marks."""
    longest = max(map(len, marks), default=0)
    for length in range(min(longest - 1, len(text)), 0, -1):
        if any(mark.startswith(text[-length:]) for mark in marks):
            return length
    return 0
