"""Which sequences share a micro-batch: a pure plan, no padding."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from miles_core.errors import TrainError

Oversize = Literal["alone", "refuse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """Sequences (indices, ascending) laid end to end in one row."""

    members: tuple[int, ...]
    num_tokens: int


def pack(lengths: Sequence[int], *, token_budget: int, oversize: Oversize = "alone") -> tuple[Pack, ...]:
    """First-fit decreasing: every sequence in exactly one pack of at most `token_budget` tokens.

    A longer sequence gets a pack of its own, or TrainError with `oversize = "refuse"`. Equal input gives an equal plan;
    ties go to the lower index.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    bins: list[list[int]] = []
    room: list[int] = []
    for index in order:
        length = lengths[index]
        if length > token_budget and oversize == "refuse":
            raise TrainError(
                f"sequence {index}: expected at most {token_budget} tokens, found {length}; raise the token budget of "
                "a micro-batch or shorten the rollouts."
            )
        place = next((b for b, free in enumerate(room) if length <= free), None)
        if place is None:
            bins.append([])
            room.append(max(token_budget, length))
            place = len(bins) - 1
        bins[place].append(index)
        room[place] -= length
    return tuple(
        Pack(members=tuple(sorted(members)), num_tokens=sum(lengths[index] for index in members)) for members in bins
    )
