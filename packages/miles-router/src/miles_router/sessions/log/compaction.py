"""Compaction: segments that hold mostly ended sessions are written anew without them, or go."""

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from miles_core.errors import RecordError
from miles_router.sessions.log.frames import Damage, Frame, scan
from miles_router.sessions.log.records import Kind, decode
from miles_router.sessions.log.segments import Segment

DEAD_SHARE = 0.5
"""A segment is worth rewriting when this share of its bytes belongs to ended sessions."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A segment to be written anew. alive: sessions that stay. tombs: ended sessions of which the end must stay."""

    path: Path
    alive: frozenset[int]
    tombs: frozenset[int]


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
        kept = sum(segment.held[session] for session in living) + sum(segment.ends[session] for session in tombs)
        dead = segment.size - kept
        worth = not living if segment.damaged else dead >= DEAD_SHARE * segment.size
        if worth and dead:
            planned.append((segment, Rewrite(segment.path, living, tombs)))
            before |= living
        else:
            before |= set(segment.held)
    return planned


def rewrite(order: Rewrite, *, sync: bool) -> Segment:
    """Do it, in any thread; the segment as it is now. An empty one has no file any more.

    The new file takes the old one's place at once, so a crash leaves one or the other.
    """
    data = order.path.read_bytes()
    fresh = order.path.with_suffix(".tmp")
    left = Segment(int(order.path.stem), order.path)
    with fresh.open("wb") as file:
        for found in scan(data):
            kind = _kind(found)
            if not isinstance(found, Frame) or kind is None:
                continue
            if found.session in order.alive or (found.session in order.tombs and kind is Kind.ENDED):
                file.write(data[found.start : found.end])
                left.count(found.session, kind, found.end - found.start)
        file.flush()
        if sync:
            os.fsync(file.fileno())
    left.size = sum(left.held.values())
    if left.size:
        fresh.replace(order.path)
    else:
        order.path.unlink()
        fresh.unlink()
    if sync:
        _sync_folder(order.path.parent)
    return left


def _kind(found: Frame | Damage) -> Kind | None:
    try:
        return decode(found.payload).kind if isinstance(found, Frame) else None
    except RecordError:
        return None


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
