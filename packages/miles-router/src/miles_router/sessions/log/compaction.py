"""Compaction: segments that hold mostly ended sessions are written anew without them, or go."""

import os
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from miles_router.sessions.log.segments import Segment, kept_frames

DEAD_SHARE = 0.5
"""A segment is worth rewriting when this share of its bytes belongs to ended sessions."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A segment to be written anew. alive: sessions that stay. tombs: ended sessions of which the end must stay."""

    path: Path
    alive: frozenset[int]
    tombs: frozenset[int]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What is left: nothing at all when `size` is 0, and then the file is gone."""

    size: int
    held: Counter[int]


def plan_compaction(sealed: Sequence[Segment], alive: Collection[int]) -> list[tuple[Segment, Rewrite]]:
    """The sealed segments to rewrite, oldest first.

    The end of a session stays as long as an older segment holds records of it: they would come back to life. A segment
    with damaged bytes is kept as it is until nothing in it lives.
    """
    planned: list[tuple[Segment, Rewrite]] = []
    before: set[int] = set()
    for segment in sealed:
        living = frozenset(session for session in segment.held if session in alive)
        tombs = frozenset(session for session in segment.held if session not in alive and session in before)
        dead = segment.size - sum(segment.held[session] for session in living)
        worth = not living if segment.damaged else dead >= DEAD_SHARE * segment.size
        if worth and dead and not (tombs and tombs == frozenset(segment.held)):
            planned.append((segment, Rewrite(segment.path, living, tombs)))
            before |= living
        else:
            before |= set(segment.held)
    return planned


def rewrite(order: Rewrite, *, sync: bool) -> Rewritten:
    """Do it, in any thread. The new file takes the old one's place at once, so a crash leaves one or the other."""
    data = order.path.read_bytes()
    frames = list(kept_frames(data, alive=order.alive, tombs=order.tombs))
    held: Counter[int] = Counter()
    if not frames:
        order.path.unlink()
        return Rewritten(0, held)
    fresh = order.path.with_suffix(".tmp")
    with fresh.open("wb") as file:
        for found in frames:
            file.write(data[found.start : found.end])
            held[found.session] += found.end - found.start
        file.flush()
        if sync:
            os.fsync(file.fileno())
    fresh.replace(order.path)
    if sync:
        _sync_folder(order.path.parent)
    return Rewritten(sum(held.values()), held)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
