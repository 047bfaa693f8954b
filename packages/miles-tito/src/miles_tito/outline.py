"""The outline of an append: what it looks like apart from its texts, and where the texts go in what the template wrote.

Rendering sentinels shows where each new message lands. For appends of one outline that is the same text with other
words in it, so it is rendered once and kept. It is never trusted: every append renders its real messages too, and the
kept text counts only if, with the real words put in, it is exactly how that render ends.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from miles_tito.render import REASONING, reasoning_of
from miles_tito.sentinels import Placed

Message = Mapping[str, Any]
_TURN_TEXT = ("content", *REASONING, "tool_calls")


def outline_of(turn: Message, new: Sequence[Message]) -> str:
    """A key for everything about the (normalised) messages but their texts, their arguments and what ids say.

    Of ids it holds length and order, and which call each result answers.
    """
    calls = turn.get("tool_calls") or ()
    ids = [str(call.get("id")) for call in calls]
    shape = [
        [(key, value) for key, value in turn.items() if key not in _TURN_TEXT],
        bool(turn.get("content")),
        bool(reasoning_of(turn)),
        [_call(call) for call in calls],
        [len(number) for number in ids],
        sorted(range(len(ids)), key=ids.__getitem__),
    ]
    for message in new:
        answered = str(message.get("tool_call_id"))
        rest = [(key, value) for key, value in message.items() if key not in ("content", "tool_call_id")]
        shape.append([rest, ids.index(answered) if answered in ids else len(answered)])
    return repr(shape)


def _call(call: Message) -> list[Any]:
    function = call["function"]
    return [
        [(key, value) for key, value in call.items() if key not in ("id", "function")],
        [(key, value) for key, value in function.items() if key != "arguments"],
    ]


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A suffix written with sentinels: the template's own text around each new message, `len(new) + 1` parts.

    marker: the control token it starts with. ids: of the calls and results it was rendered with. text: the suffix.
    """

    parts: tuple[str, ...]
    marker: str
    ids: tuple[str, ...]
    text: str

    @classmethod
    def of(cls, suffix: str, marker: str, placed: Sequence[Placed], ids: Sequence[str]) -> "Skeleton":
        """Split a suffix at its sentinels, which are in it in order and once."""
        parts, text = [], suffix
        for place in placed:
            before, _, suffix = suffix.partition(place.words[0])
            parts.append(before)
        return cls((*parts, suffix), marker, tuple(ids), text)

    def ends(self, text: str, contents: Sequence[str], ids: Sequence[str]) -> int | None:
        """Where the skeleton, filled with the contents, starts when that is how `text` ends; None when it is not.

        A template may trim white space around a content.
        """
        parts = self.parts if tuple(ids) == self.ids else [self._renamed(part, ids) for part in self.parts]
        end = len(text)
        for part, content in zip(reversed(parts[1:]), reversed(contents), strict=True):
            end -= len(part)
            if end < 0 or not text.startswith(part, end):
                return None
            found = _length_before(text, end, content)
            if found is None:
                return None
            end -= found
        end -= len(parts[0])
        return end if end >= 0 and text.startswith(parts[0], end) else None

    def _renamed(self, part: str, ids: Sequence[str]) -> str:
        for old, new in zip(self.ids, ids, strict=False):
            part = part.replace(old, new)
        return part


def ids_of(turn: Message, new: Sequence[Message]) -> tuple[str, ...]:
    """The ids of the turn's calls, then those that the new messages answer."""
    found = [call.get("id") for call in turn.get("tool_calls") or ()] + [m.get("tool_call_id") for m in new]
    return tuple(str(number) for number in found if number)


def _length_before(text: str, end: int, content: str) -> int | None:
    """Length of the content, or of what trimming leaves of it, if it stands right before `end`."""
    for form in (content, content.strip(), content.rstrip(), content.lstrip()):
        if len(form) <= end and text.startswith(form, end - len(form)):
            return len(form)
    return None
