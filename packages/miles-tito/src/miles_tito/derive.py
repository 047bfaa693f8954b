"""What follows an assistant turn, derived from the template and proved.

The last assistant turn and the new messages are rendered with sentinels in place of their text. The turn ends at the
first stop after its own sentinels and before those of the new messages; everything from that stop on is the suffix.
A suffix counts as proved when every new message's sentinel is in it, in order and once, and when the text before it is
either the accumulated transcript's own (history rendered whole) or has been shown not to matter (`prove`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from miles_tito.compare import Alignment, Difference, align, hidden, structure_of
from miles_tito.errors import Divergence, NotExtendable, TemplateError
from miles_tito.marks import OPEN, Marker, unmarked
from miles_tito.render import ChatTemplate
from miles_tito.sentinels import Placed, all_with_sentinels, with_sentinels

Message = Mapping[str, Any]
USER: Message = {"role": "user", "content": "u"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Suffix:
    """What the template writes from an assistant turn's end on, marked.

    text: starts with `marker`, ends with the next generation prompt. body: the turn before it as the template writes
    it, with sentinels for its text; only `Deriver.whole` gives it.
    """

    text: str
    marker: str
    body: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What came before and in the last assistant turn.

    messages: those before the turn. fixed: the transcript's fixed texts (see `compare.align`), one more than there are
    turns before. sampled: texts of the turns, the last one included, None where it is not known.
    """

    messages: tuple[Message, ...]
    fixed: tuple[str, ...]
    sampled: tuple[str | None, ...]


class Deriver:
    """Derives suffixes for one template. stops: control tokens that end a turn."""

    def __init__(self, template: ChatTemplate, marker: Marker, stops: Sequence[str], prefills: Sequence[str]) -> None:
        self.template = template
        self.marker = marker
        self.stops = tuple(stops)
        self.prefills = tuple(sorted(prefills, key=len, reverse=True))

    def bounded(
        self, turn: Message, new: Sequence[Message], now: datetime, *, tools: Sequence[Message] = ()
    ) -> Suffix | None:
        """The suffix in a context of one user message and the turn: the cost does not depend on the history.

        None when the render of the real messages is not that of the sentinels with the text put in their place: then
        only the real history can tell.
        """
        role = new[0]["role"]
        last, placed = with_sentinels(turn, "turn", 0), all_with_sentinels(new, "new")
        shown = self.marked([USER, last.message, *(p.message for p in placed)], tools, now, role)
        start, stop = self._cut(shown, last, placed, role)
        real = self.marked([USER, turn, *new], tools, now, role)
        (before,) = self.trim([self.marked([USER], tools, now, role)])
        texts = [self.marker.mark(message["content"]) if OPEN in real else message["content"] for message in new]
        for trim in _TRIMS:
            text = _replaced(shown[start:], placed, [trim(text) for text in texts])
            if real.startswith(before) and real.endswith(text) and len(before) + len(text) <= len(real):
                return Suffix(text=text, marker=stop)
        return None

    def whole(
        self, history: History, turn: Message, new: Sequence[Message], tools: Sequence[Message], now: datetime
    ) -> Suffix:
        """The suffix in the real history; the render of everything must agree with the transcript's fixed texts."""
        role = new[0]["role"]
        last, placed = with_sentinels(turn, "turn", 0), all_with_sentinels(new, "new")
        shown = self.marked([*history.messages, last.message, *(p.message for p in placed)], tools, now, role)
        start, stop = self._cut(shown, last, placed, role)
        real = self.marked([*history.messages, last.message, *new], tools, now, role)
        end = start + len(stop)
        if real[:end] != shown[:end]:
            raise _refusal("the text of the new message changes what stands before it", role, shown[:end], real[:end])
        bodies = self._agreed(real[:start], history.fixed, history.sampled[:-1], role)
        suffix = Suffix(text=real[start:], marker=stop, body=bodies[-1])
        complete = self.marked([*history.messages, turn, *new], tools, now, role)
        self._agreed(complete, (*history.fixed, suffix.text), history.sampled, role)
        return suffix

    def _agreed(self, text: str, fixed: Sequence[str], sampled: Sequence[str | None], role: str) -> tuple[str, ...]:
        found = self.align(text, fixed, sampled)
        if found.differences:
            divergence = found.differences[0].divergence
            raise NotExtendable(_CHANGES, role=role, divergence=divergence, help=_APPENDING)
        return found.bodies

    def _cut(self, shown: str, last: Placed, placed: Sequence[Placed], role: str) -> tuple[int, str]:
        """Where the suffix starts in the render with sentinels, and the stop it starts with."""
        first = self._first_new(shown, placed, role)
        start, stop = self._end_of_turn(shown, last, first, role)
        self._check_order(shown[start:], placed, role)
        return start, stop

    def align(self, canonical: str, fixed: Sequence[str], sampled: Sequence[str | None]) -> Alignment:
        """`compare.align` with this template's stops, the fixed texts trimmed."""
        return align(canonical, self.trim(fixed), sampled, marker=self.marker, stops=self.stops)

    def hidden(self, body: str, sampled: str, turn: int, fixed: Sequence[str]) -> list[Difference]:
        """`compare.hidden` with this template's structure."""
        structure = structure_of(self.trim(fixed), self.marker, self.stops)
        return hidden(body, sampled, turn, structure=structure, marker=self.marker)

    def trim(self, fixed: Sequence[str]) -> tuple[str, ...]:
        """Fixed texts without what a generation prompt opens inside the turn (such as `<think>`): that is turn text."""
        return tuple(text[: len(text) - len(self.prefill_of(text))] for text in fixed)

    def prefill_of(self, text: str) -> str:
        """The part of the turn that the generation prompt at the end of the text already wrote."""
        return next((prefill for prefill in self.prefills if text.endswith(prefill)), "")

    def _first_new(self, shown: str, placed: Sequence[Placed], role: str) -> int:
        places = [shown.find(word) for p in placed for word in p.words]
        if any(place < 0 for place in places):
            lost = next(p.message["role"] for p in placed if any(word not in shown for word in p.words))
            raise NotExtendable(
                f"the template drops the text of the {lost} message",
                role=role,
                help="Give the message another role, or use a template that supports it.",
            )
        return min(places)

    def _end_of_turn(self, shown: str, last: Placed, first: int, role: str) -> tuple[int, str]:
        """Start and text of the stop that ends the last turn."""
        places = [shown.find(word) for word in last.words]
        after = max(place + len(word) for place, word in zip(places, last.words, strict=True))
        if any(not 0 <= shown.find(word) < first for word in last.needed):
            raise NotExtendable(
                "the template does not show the last assistant turn, or its tool calls, before the new message",
                role=role,
                help="Start a new branch from the whole conversation.",
            )
        ends = [(self._find_written(shown, stop, after), -len(stop), stop) for stop in self.stops]
        ends = [end for end in ends if 0 <= end[0] < first]
        if ends:
            start, _, stop = min(ends)
            return start, stop
        raise NotExtendable(
            "the template writes no stop token between the assistant turn and the new message",
            role=role,
            divergence=Divergence(
                offset=after,
                before=shown[max(0, after - 60) : after],
                expected="a stop token",
                found=shown[after:first],
            ),
            help=f"Name the end-of-sequence ids in generation_config.json; the stops known are {list(self.stops)}.",
        )

    @staticmethod
    def _find_written(text: str, token: str, start: int) -> int:
        at = text.find(token, start)
        while at > 0 and text[at - 1] == OPEN:
            at = text.find(token, at + 1)
        return at

    @staticmethod
    def _check_order(suffix: str, placed: Sequence[Placed], role: str) -> None:
        words = [word for p in placed for word in p.words]
        places = [suffix.find(word) for word in words]
        once = all(suffix.count(word) == 1 for word in words)
        if once and places == sorted(places):
            return
        raise NotExtendable(
            "the template moves, repeats or reorders the new messages",
            role=role,
            divergence=Divergence(offset=0, before="", expected=" ".join(words), found=suffix[:200]),
            help="Append the messages in the order and grouping that the template writes.",
        )

    def marked(self, messages: Sequence[Message], tools: Sequence[Message], now: datetime, role: str) -> str:
        """The render with a generation prompt, look-alikes marked; NotExtendable with the template's own words."""
        try:
            return render_marked(self.template, self.marker, messages, tools=tools, generation_prompt=True, now=now)
        except TemplateError as error:
            raise NotExtendable(
                str(error).rstrip("."), role=role, help="Give the message another role, or use another template."
            ) from error


def render_marked(
    template: ChatTemplate,
    marker: Marker,
    messages: Sequence[Message],
    *,
    tools: Sequence[Message] = (),
    generation_prompt: bool,
    now: datetime,
) -> str:
    """The template's text with every control token that a caller wrote marked; TemplateError when that cannot be told.

    Tool schemas, and all messages but the assistant's, are callers' text. In an assistant's message only look-alikes of
    special tokens are: its `<think>` or `<tool_call>` may be what the template itself would write.
    """
    plain = template.normalised(messages)
    text = template.render(plain, tools=tools, generation_prompt=generation_prompt, now=now)
    if not marker.found_in(tools) and not any(marker.foreign(message) for message in plain):
        return text
    marked = [marker.mark_message(message) for message in plain]
    try:
        found = template.render(marked, tools=marker.mark(tools), generation_prompt=generation_prompt, now=now)
    except TemplateError:
        found = ""
    if unmarked(found) == text:
        return found
    placed = (
        None
        if marker.found_in(tools)
        else marker.place(text, [m["content"] for m in plain if m["role"] != "assistant"])
    )
    if placed is None:
        raise TemplateError(
            "expected to find the callers' text in the render, but the template rewrites text that holds control "
            "tokens; take the control tokens out of the messages."
        )
    return placed


_TRIMS: tuple[Callable[[str], str], ...] = (str, str.strip, str.rstrip, str.lstrip)
_CHANGES = "the template changes earlier text when the message is added"
_APPENDING = "Start a new branch from the whole conversation, or use a template that only appends."


def _refusal(reason: str, role: str, expected: str, found: str) -> NotExtendable:
    return NotExtendable(reason, role=role, divergence=Divergence.between(expected, found), help=_APPENDING)


def _replaced(shown: str, placed: Sequence[Placed], texts: Sequence[str]) -> str:
    parts: list[str] = []
    cursor = 0
    for p, text in zip(placed, texts, strict=True):
        at = shown.index(p.words[0], cursor)
        parts += [shown[cursor:at], text]
        cursor = at + len(p.words[0])
    return "".join(parts) + shown[cursor:]
