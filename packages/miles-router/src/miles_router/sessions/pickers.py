"""Sample pickers: which token trajectories of a session become samples, each named by its last turn."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from miles_core.errors import PluginError
from miles_core.plugins import load
from miles_router.sessions.tree import Turn

Picker = Callable[[Sequence[Turn]], "Picked | Sequence[Turn]"]

PICKERS: Mapping[str, str] = {
    "leaves": "miles_router.sessions.pickers:leaves",
    "all_leaves": "miles_router.sessions.pickers:all_leaves",
    "longest_leaf": "miles_router.sessions.pickers:longest_leaf",
}


@dataclass(frozen=True, slots=True)
class Picked:
    """The last turns of the trajectories that are kept, in order, and for the samples' metadata what was left out."""

    ends: tuple[Turn, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)


def picker_named(name: str) -> Picker:
    """The picker in the table, of an entry point, or at `module:attribute`; PluginError otherwise."""
    try:
        picker: Picker = load("sample_pickers", PICKERS.get(name, name))
    except PluginError as error:
        raise PluginError(f"{error} Built in: {', '.join(PICKERS)}.") from None
    return picker


def leaves(turns: Sequence[Turn]) -> Picked:
    """Every trajectory's end, without answers that no caller took or that a later one to the same request replaced.

    Those two are left out only when nothing continues them.
    """
    undelivered = _undelivered(turns)
    superseded = _superseded(turns) - undelivered
    return _ends(turns, undelivered, superseded)


def all_leaves(turns: Sequence[Turn]) -> Picked:
    """Every trajectory's end, apart from answers that no caller took."""
    return _ends(turns, _undelivered(turns), set())


def longest_leaf(turns: Sequence[Turn]) -> Picked:
    """Of the `leaves` the one with the most sampled tokens."""
    picked = leaves(turns)
    longest = max(picked.ends, key=_num_sampled, default=None)
    return Picked(() if longest is None else (longest,), {**picked.left_out, "shorter_dropped": len(picked.ends[1:])})


def _ends(turns: Sequence[Turn], undelivered: set[Turn], superseded: set[Turn]) -> Picked:
    alive = [turn for turn in turns if turn.generation is not None and turn not in undelivered | superseded]
    inner = {turn.parent for turn in alive if turn.extends}
    ends = sorted((turn for turn in alive if turn not in inner), key=Turn.place)
    return Picked(tuple(ends), {"retries_dropped": len(superseded), "undelivered_dropped": len(undelivered)})


def _undelivered(turns: Sequence[Turn]) -> set[Turn]:
    return {turn for turn in turns if not turn.delivered and turn.generation is not None} - _continued(turns)


def _continued(turns: Sequence[Turn]) -> set[Turn]:
    return {turn.parent for turn in turns if turn.parent is not None}


def _superseded(turns: Sequence[Turn]) -> set[Turn]:
    """Answers that nothing continues and that a later sibling answered the same request again."""
    continued = _continued(turns)
    alike: dict[tuple[Turn | None, bytes], list[Turn]] = defaultdict(list)
    for turn in turns:
        alike[turn.parent, turn.digest].append(turn)
    found = set()
    for siblings in alike.values():
        latest = max((turn.repeat for turn in siblings if turn.delivered), default=-1)
        found |= {turn for turn in siblings if turn.repeat < latest and turn not in continued}
    return found


def _num_sampled(turn: Turn) -> int:
    return sum(len(part.generation.ids) for part in turn.trajectory() if part.generation is not None)
