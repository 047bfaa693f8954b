"""A transcript's own text against a canonical render: equal everywhere outside what was sampled."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from miles_tito.errors import Divergence, shared_prefix
from miles_tito.marks import Marker


class Kind(StrEnum):
    """Kinds of difference. All but the last are hard: the tokens are not those the template would give."""

    SPECIAL_TOKEN_COUNT = "special_token_count"
    SPECIAL_TOKEN_TYPE = "special_token_type"
    NON_ASSISTANT_TEXT = "non_assistant_text"
    ASSISTANT_TEXT = "assistant_text"
    """A sampled turn that the template would write otherwise: the drift that keeping sampled ids preserves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One difference. turn: the sampled turn it lies in or just before, counted from 0."""

    kind: Kind
    turn: int
    divergence: Divergence


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a comparison found."""

    differences: tuple[Difference, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    """Number of differences of each kind, every kind present."""

    @property
    def hard(self) -> int:
        """Differences outside sampled text."""
        return sum(d.kind is not Kind.ASSISTANT_TEXT for d in self.differences)

    @property
    def soft(self) -> int:
        """Sampled turns that a canonical render would spell otherwise."""
        return sum(d.kind is Kind.ASSISTANT_TEXT for d in self.differences)

    @property
    def first(self) -> Difference | None:
        """The first hard difference, else the first soft one, else None."""
        hard = [d for d in self.differences if d.kind is not Kind.ASSISTANT_TEXT]
        return next(iter(hard or self.differences), None)


def report_of(differences: Sequence[Difference]) -> Report:
    """The differences with their counts."""
    found = Counter(str(d.kind) for d in differences)
    return Report(differences=tuple(differences), counts={str(kind): found[str(kind)] for kind in Kind})


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """Where the fixed texts were found in a canonical text.

    bodies: the canonical text between them, one for each sampled turn that something follows, and the rest at the end.
    differences: empty when every fixed text was found in order and nothing hides between.
    """

    bodies: tuple[str, ...]
    differences: tuple[Difference, ...]


def align(
    canonical: str, fixed: Sequence[str], sampled: Sequence[str | None], *, marker: Marker, stops: Collection[str]
) -> Alignment:
    """Find the fixed texts (prompt, then what follows each sampled turn) in the canonical text, in order.

    All texts are marked. `sampled` are the texts of the turns between, None for one that is not known. What lies
    between two fixed texts may differ from the sampled turn in any way but one: it must not hold more structure (stops,
    and the control tokens that open a message after one) than the turn does, or a message that the transcript lacks
    could hide there.
    """
    structure = structure_of(fixed, marker, stops)
    bodies: list[str] = []
    differences: list[Difference] = []
    cursor = 0
    for turn, text in enumerate(fixed):
        at = cursor if turn == 0 else canonical.find(text, cursor)
        if at < 0 or not canonical.startswith(text, at):
            differences.append(_missing(canonical[cursor:], text, turn, marker))
            bodies.append("")
            continue
        if turn:
            bodies.append(canonical[cursor:at])
            text_of_turn = sampled[turn - 1]
            if text_of_turn is not None:
                differences += hidden(bodies[-1], text_of_turn, turn - 1, structure=structure, marker=marker)
        cursor = at + len(text)
    bodies.append(canonical[cursor:])
    return Alignment(bodies=tuple(bodies), differences=tuple(differences))


def structure_of(fixed: Sequence[str], marker: Marker, stops: Collection[str]) -> set[str]:
    """The control tokens that part messages: the stops, and those that open a message right after one."""
    structure = set(stops)
    for text in fixed:
        written = marker.written(text)
        for before, after in pairwise(written):
            if before[0] in stops and not text[before.end() : after.start()].strip():
                structure.add(after[0])
    return structure


def _missing(rest: str, text: str, turn: int, marker: Marker) -> Difference:
    """The fixed text does not occur: say what kind of difference that is, against the place where it fits best."""
    first = marker.first(text)
    opening = first[0] if turn and first and first.start() == 0 else ""
    at = _best_start(rest, text, opening)
    found = rest[at : at + len(text)]
    wanted, have = ([m[0] for m in marker.written(part)] for part in (text, found))
    if len(wanted) != len(have):
        kind = Kind.SPECIAL_TOKEN_COUNT
    elif wanted != have:
        kind = Kind.SPECIAL_TOKEN_TYPE
    else:
        kind = Kind.NON_ASSISTANT_TEXT
    return Difference(kind=kind, turn=turn, divergence=Divergence.between(rest[at:], text))


def _best_start(rest: str, text: str, opening: str) -> int:
    best, longest, at = 0, -1, 0
    while opening and (at := rest.find(opening, at)) >= 0:
        shared = shared_prefix(rest[at:], text)
        if shared > longest:
            best, longest = at, shared
        at += len(opening)
    return best


def hidden(body: str, sampled: str, turn: int, *, structure: Collection[str], marker: Marker) -> list[Difference]:
    """A difference when the canonical text of a turn holds more structure than the sampled text."""
    extra = Counter(m[0] for m in marker.written(body) if m[0] in structure)
    extra -= Counter(m[0] for m in marker.written(sampled))
    if not extra:
        return []
    divergence = Divergence.between(body, sampled)
    return [Difference(kind=Kind.SPECIAL_TOKEN_COUNT, turn=turn, divergence=divergence)]
