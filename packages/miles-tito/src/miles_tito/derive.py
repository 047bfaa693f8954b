"""What follows an assistant turn, derived from the template and proved.

The last assistant turn and the new messages are rendered with sentinels in place of their text. The turn ends at the
first stop after its own sentinels and before those of the new messages; everything from that stop on is the suffix.
A suffix counts as proved when every new message's sentinel is in it, in order and once, and when the text before it is
either the accumulated transcript's own (history rendered whole) or has been shown not to matter (`prove`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from miles_core.messages import text_of
from miles_tito.boundary import Scene, lost_text
from miles_tito.compare import Alignment, Difference, align, hidden, structure_of
from miles_tito.errors import Divergence, NotExtendable, TemplateError
from miles_tito.joined import Joints
from miles_tito.marks import OPEN, Marker, strings_of, unmarked
from miles_tito.outline import Skeleton, ids_of, outline_of
from miles_tito.render import ChatTemplate, mentions
from miles_tito.sentinels import all_with_sentinels, sentinel_stem, with_sentinels

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
        self.joints = Joints(marker.forbidden)
        self.stops = tuple(stops)
        self.prefills = tuple(sorted(prefills, key=len, reverse=True))
        self._reads_clock = mentions(template.source, "strftime_now")
        self._kept: dict[str, Skeleton] = {}
        self._starts: dict[str, str] = {}

    def bounded(
        self, turn: Message, new: Sequence[Message], now: datetime, *, tools: Sequence[Message] = ()
    ) -> Suffix | None:
        """The suffix in a context of one user message and the turn: the cost does not depend on the history.

        None when the render of the real messages is not that of the sentinels with the text put in their place, or has
        another number of control tokens: then only the real history can tell.
        """
        if self.joints.beside_content(new):
            return None
        plain = self.template.normalised([USER, turn, *new])
        real = self._text(plain, new, tools, now)
        contents = [self.marker.mark_callers(m["content"]) if OPEN in real else m["content"] for m in plain[2:]]
        before = self._before(new, tools, now)
        ids = ids_of(turn, new)
        key = f"{outline_of(plain[1], plain[2:])}{bool(tools)}{self._clock(now)}"
        for skeleton in self._skeletons(key, turn, new, tools, now):
            start = skeleton.ends(real, contents, ids)
            if start is None or start < len(before) or not real.startswith(before):
                continue
            if self.joints.count(real[start:]) == self.joints.count(skeleton.text):
                return Suffix(text=real[start:], marker=skeleton.marker)
        return None

    def _skeletons(
        self, key: str, turn: Message, new: Sequence[Message], tools: Sequence[Message], now: datetime
    ) -> Iterator[Skeleton]:
        """The one kept for that outline, then one of the very messages."""
        kept = self._kept.get(key)
        if kept is not None:
            yield kept
        scene = self._scene((USER,), turn, new, tools, now)
        cut = scene.cut(self.stops, self.marker)
        fresh = Skeleton.of(scene.shown[cut.start :], cut.stop, scene.placed, ids_of(turn, new))
        if len(self._kept) >= _MAX_KEPT:
            self._kept.clear()
        self._kept[key] = fresh
        yield fresh

    def _before(self, new: Sequence[Message], tools: Sequence[Message], now: datetime) -> str:
        """What a bounded context starts with, whatever follows its user message."""
        key = f"{bool(tools)}{self._clock(now)}"
        known = self._starts.get(key)
        if known is None:
            if len(self._starts) >= _MAX_KEPT:
                self._starts.clear()
            (known,) = self.trim([self._text(self.template.normalised([USER]), new, tools, now)])
            self._starts[key] = known
        return known

    def _clock(self, now: datetime) -> str:
        return str(now) if self._reads_clock else ""

    def _scene(
        self,
        history: Sequence[Message],
        turn: Message,
        new: Sequence[Message],
        tools: Sequence[Message],
        now: datetime,
    ) -> Scene:
        mine = _unsaid("turn", "new", said=[*history, turn, *new])
        last, placed = with_sentinels(turn, f"turn{mine}", 0), all_with_sentinels(new, f"new{mine}")
        messages = [*history, last.message, *(p.message for p in placed)]
        shown = self._text(self.template.normalised(messages), new, tools, now)
        return Scene(shown, last, tuple(placed), turn, tuple(new))

    def whole(
        self, history: History, turn: Message, new: Sequence[Message], tools: Sequence[Message], now: datetime
    ) -> Suffix:
        """The suffix in the real history; the render of everything must agree with the transcript's fixed texts."""
        scene = self._scene(history.messages, turn, new, tools, now)
        cut = scene.cut(self.stops, self.marker)
        real = self._text(self.template.normalised([*history.messages, scene.last.message, *new]), new, tools, now)
        start = scene.same_cut(real, cut)
        lost = lost_text(real[start:], new)
        if lost is not None:
            raise scene.drops(*lost, real[start:])
        bodies = self._agreed(real[:start], history.fixed, history.sampled[:-1], scene)
        suffix = Suffix(text=real[start:], marker=cut.stop, body=bodies[-1])
        complete = self._text(self.template.normalised([*history.messages, turn, *new]), new, tools, now, check=True)
        self._agreed(complete, (*history.fixed, suffix.text), history.sampled, scene)
        return suffix

    def _agreed(self, text: str, fixed: Sequence[str], sampled: Sequence[str | None], scene: Scene) -> tuple[str, ...]:
        found = self.align(text, fixed, sampled)
        if found.differences:
            divergence = found.differences[0].divergence
            shown = replace(
                divergence, expected=scene.readable(divergence.expected), found=scene.readable(divergence.found)
            )
            raise NotExtendable(_CHANGES, role=scene.role, divergence=shown, help=_APPENDING)
        return found.bodies

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

    def marked(self, messages: Sequence[Message], tools: Sequence[Message], now: datetime, role: str) -> str:
        """The render with a generation prompt, look-alikes marked; NotExtendable with the template's own words."""
        return self._text(self.template.normalised(messages), [{"role": role}], tools, now)

    def _text(
        self,
        plain: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Message],
        now: datetime,
        *,
        check: bool = False,
    ) -> str:
        joints = self.joints if check else None
        try:
            return _marked(
                self.template, self.marker, plain, tools=tools, generation_prompt=True, now=now, joints=joints
            )
        except TemplateError as error:
            said = str(error).rstrip(".")
            raise NotExtendable(
                said,
                role=str(new[0]["role"]),
                divergence=Divergence(offset=0, before="", expected=text_of(new[0].get("content"))[:120], found=said),
                help="Give the message another role, or use another template.",
            ) from error


def render_marked(
    template: ChatTemplate,
    marker: Marker,
    messages: Sequence[Message],
    *,
    tools: Sequence[Message] = (),
    generation_prompt: bool,
    now: datetime,
    joints: Joints | None = None,
) -> str:
    """The template's text with every control token that a caller wrote marked; TemplateError when that cannot be told.

    Tool schemas, and all messages but the assistant's, are callers' text. In an assistant's message only look-alikes of
    special tokens are: its `<think>` or `<tool_call>` may be what the template itself would write.
    joints: refuse control tokens that several callers' texts make together; they are not looked for when omitted.
    """
    plain = template.normalised(messages)
    return _marked(template, marker, plain, tools=tools, generation_prompt=generation_prompt, now=now, joints=joints)


def _marked(
    template: ChatTemplate,
    marker: Marker,
    plain: Sequence[Message],
    *,
    tools: Sequence[Message],
    generation_prompt: bool,
    now: datetime,
    joints: Joints | None = None,
) -> str:
    text = _with_marks(template, marker, plain, tools, generation_prompt, now)
    if joints is not None:
        joints.check(text, template, plain, tools, generation_prompt=generation_prompt, now=now)
    return text


def _with_marks(
    template: ChatTemplate,
    marker: Marker,
    plain: Sequence[Message],
    tools: Sequence[Message],
    generation_prompt: bool,
    now: datetime,
) -> str:
    text = template.render(plain, tools=tools, generation_prompt=generation_prompt, now=now)
    if not marker.found_in(tools) and not any(marker.foreign(message) for message in plain):
        return text
    marked = [marker.mark_message(message) for message in plain]
    try:
        found = template.render(marked, tools=marker.mark_callers(tools), generation_prompt=generation_prompt, now=now)
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


def _unsaid(*names: str, said: Sequence[Message]) -> str:
    """What to put behind the names so that no message holds their sentinels: only a unique word shows a place."""
    text = "\n".join(strings_of(list(said)))
    tried = ""
    while any(sentinel_stem(f"{name}{tried}") in text for name in names):
        tried += "x"
    return tried


_MAX_KEPT = 512
_CHANGES = "the template changes earlier text when the message is added"
_APPENDING = "Begin a new transcript from all messages, or use a template that only appends."
