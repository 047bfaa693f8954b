"""What follows an assistant turn, derived from the template and proved.

The last assistant turn and the new messages are rendered with sentinels in place of their text. The turn ends at the
first stop after its own sentinels and before those of the new messages; everything from that stop on is the suffix.
A suffix counts as proved when every new message's sentinel is in it, in order and once, and when the text before it is
either the accumulated transcript's own (history rendered whole) or has been shown not to matter (`prove`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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

    text: starts with `marker`, ends with the next generation prompt. exact: the text of the new messages stands where
    their sentinels stood, unchanged or trimmed. body: the turn before it, with sentinels (of `whole` only).
    """

    text: str
    marker: str
    exact: bool
    body: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What came before the last assistant turn, as messages and as the fixed texts of the transcript (see `align`)."""

    messages: tuple[Message, ...]
    fixed: tuple[str, ...]
    sampled: tuple[str, ...]


class Deriver:
    """Derives suffixes for one template. stops: control tokens that end a turn."""

    def __init__(self, template: ChatTemplate, marker: Marker, stops: Sequence[str], prefills: Sequence[str]) -> None:
        self.template = template
        self.marker = marker
        self.stops = tuple(stops)
        self.prefills = tuple(sorted(prefills, key=len, reverse=True))

    def bounded(self, turn: Message, new: Sequence[Message], now: datetime) -> Suffix:
        """The suffix in a context of one user message and the turn: the cost does not depend on the history."""
        suffix, _ = self._derive((USER,), turn, new, tools=(), now=now)
        return suffix

    def whole(
        self, history: History, turn: Message, new: Sequence[Message], tools: Sequence[Message], now: datetime
    ) -> Suffix:
        """The suffix in the real history, whose render must agree with the transcript's fixed texts."""
        suffix, before = self._derive(history.messages, turn, new, tools=tools, now=now)
        found = self.align(before, history.fixed, history.sampled)
        if found.differences:
            raise NotExtendable(
                "the template changes earlier text when the message is added",
                role=new[0]["role"],
                divergence=found.differences[0].divergence,
                help="Start a new branch from the whole conversation, or use a template that only appends.",
            )
        return replace(suffix, body=found.bodies[-1])

    def align(self, canonical: str, fixed: Sequence[str], sampled: Sequence[str]) -> Alignment:
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

    def _derive(
        self,
        history: Sequence[Message],
        turn: Message,
        new: Sequence[Message],
        *,
        tools: Sequence[Message],
        now: datetime,
    ) -> tuple[Suffix, str]:
        role = new[0]["role"]
        last = with_sentinels(turn, "turn", 0)
        placed = all_with_sentinels(new, "new")
        shown = self.marked([*history, last.message, *(p.message for p in placed)], tools, now, role)
        real = self.marked([*history, last.message, *new], tools, now, role)
        first = self._first_new(shown, placed, role)
        start, stop = self._end_of_turn(shown, last, first, role)
        end = start + len(stop)
        self._check_order(shown[end:], placed, role)
        if real[:end] != shown[:end]:
            raise NotExtendable(
                "the text of the new message changes what stands before it",
                role=role,
                divergence=Divergence.between(shown[:end], real[:end]),
                help="Start a new branch from the whole conversation.",
            )
        exact = _substitutes(shown[start:], unmarked(real[start:]), placed, new)
        return Suffix(text=real[start:], marker=stop, exact=exact), real[:start]

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
        places = [
            (place, stop) for stop in self.stops if 0 <= (place := self._find_written(shown, stop, after)) < first
        ]
        if places:
            return min(places, key=lambda found: (found[0], -len(found[1])))
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


def _substitutes(shown: str, real: str, placed: Sequence[Placed], new: Sequence[Message]) -> bool:
    """True when the real suffix is the shown one with each sentinel replaced by its message's text."""
    if any(message["role"] == "assistant" for message in new):
        return False
    trims = (str, str.strip, str.rstrip, str.lstrip)
    return any(_replaced(shown, placed, new, trim) == real for trim in trims)


def _replaced(shown: str, placed: Sequence[Placed], new: Sequence[Message], trim: Any) -> str:
    parts: list[str] = []
    cursor = 0
    for p, message in zip(placed, new, strict=True):
        at = shown.index(p.words[0], cursor)
        parts += [shown[cursor:at], trim(message["content"])]
        cursor = at + len(p.words[0])
    return "".join(parts) + shown[cursor:]
