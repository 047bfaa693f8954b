"""What one transcript has confirmed of its template's bounded proofs.

A proof is made once per template, under made-up histories. Whether it also holds after this prompt (its system text,
tools, keys and roles) is seen by deriving the first append of a kind from the real history as well; and again whenever
a message is the first to say something that the template's source could be looking for, to have a trait that it could
be looking at, or to come in an append of its kind. There are few of these, so a long transcript runs out of them.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self

from miles_core.messages import text_of
from miles_tito.marks import OPEN, strings_of
from miles_tito.render import REASONING

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Kept by every state of a transcript and inherited by the next; states share it while nothing new is said.

    said: constants of the template, keys beyond the usual ones and traits that messages up to the last prompt have, and
        the kinds of their appends.
    met: which role has followed which.
    agreed: kinds of append whose bounded suffix was that of the real history since then.
    broken: True once one was not; no bounded suffix is used in this transcript any more.
    """

    said: frozenset[str] = frozenset()
    met: frozenset[tuple[str, str]] = frozenset()
    agreed: frozenset[str] = frozenset()
    broken: bool = False

    def covers(self, kind: str, fresh: frozenset[str]) -> bool:
        """True when the kind has agreed, and nothing (`fresh`) is said for the first time in this append."""
        return kind in self.agreed and not fresh

    def compared(self, kind: str, *, equal: bool) -> Self:
        """The trust after one more comparison of a bounded suffix with that of the real history."""
        return replace(self, agreed=self.agreed | {kind}) if equal else replace(self, broken=True)

    def meeting(self, messages: Sequence[Message]) -> Self:
        """The trust once these follow each other: where a role follows another one for the first time, all agree again.

        A system message that comes late, say, may change what the template counts from there on.
        """
        pairs = {(str(one["role"]), str(other["role"])) for one, other in pairwise(messages)}
        return self if pairs <= self.met else replace(self, met=self.met | pairs, agreed=frozenset())

    def doubting(self) -> Self:
        """The trust after an append that only the real history could tell: what follows it may depend on it."""
        return replace(self, agreed=frozenset()) if self.agreed else self

    def hearing(self, fresh: frozenset[str]) -> Self:
        """The trust after messages that say these for the first time: what agreed before has to agree again."""
        return replace(self, said=self.said | fresh, agreed=frozenset()) if fresh else self


class Phrasebook:
    """Tells which of a template's constants messages say, upper and lower case alike, and what they look like.

    numbers: those of the template's source, which may be lengths that it compares with.
    """

    def __init__(self, constants: Sequence[str], numbers: Iterable[int] = ()) -> None:
        self._folded = tuple((text, text.casefold()) for text in constants)
        self._lengths = tuple(sorted({*_LENGTHS, *(number for number in numbers if number > 0)}))

    def fresh(self, messages: Sequence[Message], said: frozenset[str] = frozenset()) -> frozenset[str]:
        """The constants, unusual keys and traits of the messages that are not among those said."""
        text = OPEN.join(text for m in messages for text in strings_of({**m, "role": None})).casefold()
        found = {phrase for phrase, folded in self._folded if phrase not in said and folded in text}
        keys = {key for message in messages for key in _keys(message)}
        traits = {trait for message in messages if "role" in message for trait in self._traits(message)}
        return frozenset(found | (keys - said) | (traits - said))

    def _traits(self, message: Message) -> Iterator[str]:
        """What can be seen of a content without knowing what is looked for, by role: where its sizes lie too."""
        role, content = message["role"], text_of(message.get("content"))
        if not content:
            yield f"{role}: empty"
            return
        if content.isspace():
            yield f"{role}: blank"
        if content.isdigit():
            yield f"{role}: digits"
        if content[0].isspace():
            yield f"{role}: space before"
        if content[-1].isspace():
            yield f"{role}: space after"
        if "\n" in content:
            yield f"{role}: lines"
        yield f"{role}: longer than {self._reached(len(content))}"
        yield f"{role}: more words than {self._reached(content.count(' ') + 1)}"

    def _reached(self, size: int) -> int:
        """The greatest of the lengths that the size exceeds, or 0."""
        place = bisect_left(self._lengths, size)
        return self._lengths[place - 1] if place else 0


_LENGTHS = (200, 2_000, 20_000)
"""Lengths that count whatever the source says, in case it computes the one that it compares with."""

_USUAL = frozenset({"role", "content", "tool_calls", "tool_call_id", *REASONING})
_OF_CALLS = frozenset({"id", "type", "function"})
_OF_FUNCTIONS = frozenset({"name", "arguments"})


def _keys(message: Message) -> Iterator[str]:
    usual = _USUAL | {"name"} if message.get("role") == "tool" else _USUAL
    yield from _unusual(message, usual)
    for call in message.get("tool_calls") or ():
        yield from _unusual(call, _OF_CALLS)
        yield from _unusual(call.get("function") or {}, _OF_FUNCTIONS)


def _unusual(found: Message, usual: frozenset[str]) -> Iterator[str]:
    """Keys that are not usual, each with its value where that is true, false or null."""
    for key, value in found.items():
        if key not in usual:
            yield f".{key}={value}" if value is None or isinstance(value, bool) else f".{key}"
