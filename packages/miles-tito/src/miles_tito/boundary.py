"""Where an assistant turn ends in a render whose texts are sentinels, and why that cannot be told where it cannot."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from miles_core.messages import text_of
from miles_tito.control_forms import CONTROL_FORM
from miles_tito.errors import Divergence, NotExtendable
from miles_tito.marks import OPEN, Marker
from miles_tito.sentinels import Placed

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Where a turn ends in a render: after its own words, at the control token `stop` that starts the suffix."""

    after: int
    start: int
    stop: str


@dataclass(frozen=True, slots=True)
class Scene:
    """One render to be cut: the text, the last turn and the new messages with the words that stand for them.

    turn, new: the messages as they are, whose texts explain a refusal better than sentinels do.
    """

    shown: str
    last: Placed
    placed: tuple[Placed, ...]
    turn: Message
    new: tuple[Message, ...]

    @property
    def role(self) -> str:
        """Role of the first new message."""
        return str(self.new[0]["role"])

    def cut(self, stops: Sequence[str], marker: Marker) -> "Cut":
        """The control token that ends the last turn; NotExtendable when the template writes none.

        It is the first known stop after the turn's own sentinels and before those of the new messages. A turn of text
        may also end where the next message opens, with nothing but white space before.
        """
        first = self._first_new()
        after = self._end_of_words(first)
        ends = [(_find_written(self.shown, stop, after), -len(stop), stop) for stop in stops]
        ends = [end for end in ends if 0 <= end[0] < first]
        if ends:
            start, _, stop = min(ends)
        else:
            start, stop = self._opener(after, first, marker)
        self._check_order(self.shown[start:])
        return Cut(after=after, start=start, stop=stop)

    def same_cut(self, text: str, cut: "Cut") -> int:
        """Where the suffix starts in a render that differs in the new messages alone, up to which nothing else may."""
        here = max((text.find(word) + len(word) for word in self.last.words if word in text), default=0)
        start = here + cut.start - cut.after
        wanted, found = self.shown[cut.after : cut.start + len(cut.stop)], text[here : start + len(cut.stop)]
        if wanted == found:
            return start
        raise self._refusal(
            "the text of the new message changes what the template writes before it",
            at=cut.after,
            expected=self.readable(wanted),
            found=found,
            help="Begin a new transcript from all messages, or use a template that only appends.",
        )

    def _opener(self, after: int, first: int, marker: Marker) -> tuple[int, str]:
        found = None if self.last.message.get("tool_calls") else marker.first(self.shown, after)
        if found and found.end() <= first and not self.shown[after : found.start()].strip():
            return found.start(), found[0]
        between = self.shown[after:first]
        reason = "the template writes no stop token between the assistant turn and the new message"
        help = "Use a template that ends every turn, or name its end-of-sequence ids in generation_config.json."
        spelled = dict.fromkeys(match[0] for match in CONTROL_FORM.finditer(between))
        lacking = [repr(token) for token in spelled if marker.first(token) is None]
        if lacking:
            reason = f"{reason} that the vocabulary has, only {' and '.join(lacking)}, which it lacks"
            help = "Use the tokenizer that the template was written for."
        raise self._refusal(reason, at=after, expected="a stop token", found=between, help=help)

    def _first_new(self) -> int:
        places = [self.shown.find(word) for p in self.placed for word in p.words]
        if all(place >= 0 for place in places):
            return min(places)
        lost = next(n for n, p in enumerate(self.placed) if any(word not in self.shown for word in p.words))
        seen = [self.shown.rfind(word) + len(word) for word in self.last.words if word in self.shown]
        at = max(seen, default=max(0, len(self.shown) - _WIDTH))
        message = self.new[lost]
        raise self._refusal(
            f"the template drops the text of the {message['role']} message",
            at=at,
            expected=_words_of(message),
            found=self.shown[at:],
            help="Give the message another role, or use a template that writes this one.",
        )

    def drops(self, message: Message, word: str, suffix: str) -> NotExtendable:
        """The refusal of a suffix that lacks a word of a new message."""
        at = suffix.rfind(text_of(message.get("content")).partition(word)[0][-20:].strip())
        return self._refusal(
            f"the template drops or rewrites part of the text of the {message['role']} message",
            at=len(self.shown),
            expected=word,
            found=suffix[max(0, at) :],
            help="Shorten the text to what the template keeps, or use a template that writes all of it as it is.",
        )

    def _end_of_words(self, first: int) -> int:
        """Where the last of the turn's own words ends."""
        places = {word: self.shown.find(word) for word in self.last.words}
        missing = next((word for word in self.last.needed if places[word] < 0), None)
        moved = next((word for word, place in places.items() if place >= first), None)
        if missing is None and moved is None:
            return max(place + len(word) for word, place in places.items() if place >= 0)
        part = "the tool calls" if (missing or moved) in self.last.call_words else "the text"
        if moved is None:
            at = max(0, first - _WIDTH // 2)
            raise self._refusal(
                f"the template does not write {part} of the last assistant turn",
                at=at,
                expected=_words_of(self.turn),
                found=self.shown[at:],
                help="Begin a new transcript from all messages.",
            )
        if all(place > first for place in places.values() if place >= 0):
            reason = f"the template moves the {self.role} message in front of the last assistant turn"
            raise self._refusal(
                reason,
                at=first,
                expected=_words_of(self.turn),
                found=self.shown[first:],
                help="Give the message another role, or begin a new transcript from all messages.",
            )
        raise self._refusal(
            f"the template writes {part} of the last assistant turn behind the new message",
            at=places[moved],
            expected="the new message's end",
            found=self.shown[places[moved] :],
            help="Begin a new transcript from all messages.",
        )

    def _check_order(self, suffix: str) -> None:
        words = [word for p in self.placed for word in p.words]
        places = [suffix.find(word) for word in words]
        if all(suffix.count(word) == 1 for word in words) and places == sorted(places):
            return
        raise self._refusal(
            "the template moves, repeats or reorders the new messages",
            at=len(self.shown) - len(suffix),
            expected=" ".join(_words_of(message) for message in self.new),
            found=suffix,
            help="Append the messages in the order and grouping that the template writes.",
        )

    def _refusal(self, reason: str, *, at: int, expected: str, found: str, help: str) -> NotExtendable:
        before = self.readable(self.shown[max(0, at - 60) : at])
        divergence = Divergence(
            offset=at, before=before, expected=expected[:_WIDTH], found=self.readable(found)[:_WIDTH]
        )
        return NotExtendable(reason, role=self.role, divergence=divergence, help=help)

    def readable(self, text: str) -> str:
        """The text with the messages' own words where it has sentinels."""
        for placed in (self.last, *self.placed):
            for word, original in placed.originals.items():
                text = text.replace(word, _short(original))
        return text


_WIDTH = 120
_WORD = re.compile(r"\w+")


def lost_text(suffix: str, new: Sequence[Message]) -> tuple[Message, str] | None:
    """The first new message, and its first word, that the suffix does not hold after the words before it.

    Words, because a template may escape, indent or trim what stands between them. Of an assistant's message only the
    last word counts: its reasoning may be dropped.
    """
    cursor = 0
    for message in new:
        words = [found[0] for found in _WORD.finditer(text_of(message.get("content")))]
        for word in words[-1:] if message["role"] == "assistant" else words:
            at = suffix.find(word, cursor)
            if at < 0:
                return message, word
            cursor = at + len(word)
    return None


def _words_of(message: Message) -> str:
    """What a message says: its text, else the names of the tools it calls."""
    text = text_of(message.get("content"))
    calls = [
        f"{call['function']['name']}({call['function'].get('arguments')})" for call in message.get("tool_calls") or ()
    ]
    return text if text and not calls else " ".join([text, *calls]).strip()


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."


def _find_written(text: str, token: str, start: int) -> int:
    """Where the token stands at or after `start` without being a marked look-alike, or -1."""
    at = text.find(token, start)
    while at > 0 and text[at - 1] == OPEN:
        at = text.find(token, at + 1)
    return at
