"""An answer as parts in the order of their making: reasoning, text, and tool calls, each growing until it is closed."""

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from miles_router.sessions.attempt import Attempt, Delta

PartKind = Literal["reasoning", "text", "call"]


@dataclass(slots=True, kw_only=True)
class Part:
    """One part. number: its place among the parts. pieces: of its text, or of a call's arguments."""

    number: int
    kind: PartKind
    pieces: list[str] = field(default_factory=list)
    call_id: str = ""
    name: str = ""
    index: int = -1
    """A call's place among the calls."""

    @property
    def text(self) -> str:
        """What it says so far."""
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class Opened:
    """A part begins, empty."""

    part: Part


@dataclass(frozen=True, slots=True)
class Grew:
    """Text was added to a part."""

    part: Part
    text: str


@dataclass(frozen=True, slots=True)
class Closed:
    """A part is complete."""

    part: Part


Step = Opened | Grew | Closed


class PartBuilder:
    """Turns the deltas of an answer into steps of its parts; one part is open at a time.

    with_reasoning: False leaves reasoning out of what the client sees.
    """

    def __init__(self, *, with_reasoning: bool = True) -> None:
        self.parts: list[Part] = []
        self._open: Part | None = None
        self._with_reasoning = with_reasoning

    def feed(self, delta: Delta) -> Iterator[Step]:
        """The steps that a delta makes."""
        if self._with_reasoning and delta.get("reasoning_content"):
            yield from self._add("reasoning", delta["reasoning_content"])
        if delta.get("content"):
            yield from self._add("text", delta["content"])
        for call in delta.get("tool_calls") or ():
            yield from self._add_call(call)

    def finish(self) -> Iterator[Step]:
        """The last steps; an answer without text or calls ends in an empty text."""
        yield from self._close()
        if all(part.kind == "reasoning" for part in self.parts):
            yield from self._add("text", "")
            yield from self._close()

    def _add(self, kind: PartKind, text: str) -> Iterator[Step]:
        if self._open is None or self._open.kind != kind:
            yield from self._begin(Part(number=len(self.parts), kind=kind))
        yield from self._grow(text)

    def _add_call(self, call: Mapping[str, Any]) -> Iterator[Step]:
        function = call.get("function") or {}
        if self._open is None or self._open.kind != "call" or self._open.index != call["index"]:
            yield from self._begin(
                Part(
                    number=len(self.parts),
                    kind="call",
                    call_id=call.get("id") or "",
                    name=function.get("name") or "",
                    index=call["index"],
                )
            )
        yield from self._grow(function.get("arguments") or "")

    def _begin(self, part: Part) -> Iterator[Step]:
        yield from self._close()
        self._open = part
        self.parts.append(part)
        yield Opened(part)

    def _grow(self, text: str) -> Iterator[Step]:
        if self._open is not None and text:
            self._open.pieces.append(text)
            yield Grew(self._open, text)

    def _close(self) -> Iterator[Step]:
        if self._open is not None:
            yield Closed(self._open)
            self._open = None


def parts_of(message: Mapping[str, Any], *, with_reasoning: bool = True) -> list[Part]:
    """The parts of a whole message."""
    builder = PartBuilder(with_reasoning=with_reasoning)
    for delta in message_deltas(message):
        for _ in builder.feed(delta):
            pass
    for _ in builder.finish():
        pass
    return builder.parts


async def follow(attempt: Attempt) -> AsyncIterator[Delta]:
    """The deltas of an attempt as they come, or those of its whole message when it was not sampled as a stream.

    Raises what the attempt fails with.
    """
    async for delta in attempt.deltas():
        yield delta
    turn = await attempt.result()
    if not attempt.streamed:
        for delta in message_deltas(turn.message):
            yield delta


def message_deltas(message: Mapping[str, Any]) -> list[Delta]:
    """A whole message as deltas."""
    deltas: list[Delta] = [{name: message[name]} for name in ("reasoning_content", "content") if message.get(name)]
    for index, call in enumerate(message.get("tool_calls") or ()):
        deltas.append({"tool_calls": [{"index": index, **call}]})
    return deltas
