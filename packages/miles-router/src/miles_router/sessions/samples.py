"""Recorded turns to training samples: one per leaf, every sampled token trained at most once."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from miles_core.errors import SessionError
from miles_core.sample import Finish, Origin, Sample, Span
from miles_router.sessions.tree import Turn
from miles_tito import ChatTokenizer


@dataclass(frozen=True, slots=True)
class Leaf:
    """The last turn of a token trajectory. overflowed: an answer that had no room came after it."""

    turn: Turn
    overflowed: bool


@dataclass(frozen=True, slots=True)
class Leaves:
    """The trajectories that become samples, in the order of their places, and what was left out."""

    kept: tuple[Leaf, ...]
    retries_dropped: int
    undelivered_dropped: int


def choose_leaves(turns: Sequence[Turn], *, keep_retries: bool) -> Leaves:
    """Which trajectories to keep.

    Left out: an answer that no caller took, and, unless `keep_retries`, an answer that a later one to the same request
    superseded; each only when nothing continues it.
    """
    heads = {turn for turn in turns if not turn.extends}
    undelivered = {t for t in turns if not t.delivered and t.generation is not None} - _continued(turns)
    superseded = set() if keep_retries else _superseded(turns) - undelivered
    alive = [t for t in turns if t.generation is not None and t not in undelivered | superseded]
    inner = {t.parent for t in alive if t.extends}
    full = {t.parent for t in turns if t.generation is None and t not in heads}
    leaves = sorted((t for t in alive if t not in inner), key=Turn.place)
    return Leaves(
        kept=tuple(Leaf(turn, turn in full) for turn in leaves),
        retries_dropped=len(superseded),
        undelivered_dropped=len(undelivered),
    )


def assemble(
    turns: Sequence[Turn],
    chat: ChatTokenizer,
    *,
    prompt_id: str,
    rollout_id: str,
    keep_retries: bool = False,
    metadata: Mapping[str, Any] | None = None,
) -> list[Sample]:
    """One sample per kept leaf; a turn that several of them share is trained in the first and masked in the others.

    A conversation that never had room for an answer gives one sample without tokens. SessionError 422 when there is no
    turn at all.
    """
    if not turns:
        raise SessionError("samples cannot be assembled: the session has no recorded turn.", status=422)
    leaves = choose_leaves(turns, keep_retries=keep_retries)
    shared = {
        **(metadata or {}),
        "not_extendable": sum(turn.not_extendable is not None for turn in turns),
        "retries_dropped": leaves.retries_dropped,
        "undelivered_dropped": leaves.undelivered_dropped,
    }
    trained: set[Turn] = set()
    samples = []
    for leaf in leaves.kept:
        spans, details = _spans(leaf.turn, chat, trained)
        cut = leaf.overflowed or leaf.turn.finish == "length"
        samples.append(
            Sample(
                prompt_id=prompt_id,
                rollout_id=rollout_id,
                spans=spans,
                finish=Finish.LENGTH if cut else Finish.STOP,
                messages=leaf.turn.conversation(),
                metadata={**shared, **details},
            )
        )
    if samples:
        return samples
    if not any(turn.generation is None for turn in turns):
        raise SessionError("samples cannot be assembled: no recorded answer reached its caller.", status=422)
    return [_without_tokens(turns, prompt_id, rollout_id, shared)]


def _spans(leaf: Turn, chat: ChatTokenizer, trained: set[Turn]) -> tuple[tuple[Span, ...], Mapping[str, Any]]:
    """The leaf's spans, masked where another sample trains them or where the tokens cannot be proved.

    Turns that end up trained here join `trained`.
    """
    trajectory = leaf.trajectory()
    report = chat.verify(leaf.transcript)
    first_bad = report.first.turn if report.hard and report.first is not None else len(trajectory)
    sampled = [piece for piece in leaf.transcript.pieces() if piece.finish is not None]
    if len(sampled) != len(trajectory):
        raise SessionError(
            f"samples cannot be assembled: {len(trajectory)} turns lead to turn {leaf.turn_id}, its tokens hold "
            f"{len(sampled)}.",
            status=422,
        )
    spans: list[Span] = []
    place = 0
    for piece in leaf.transcript.pieces():
        live = True
        if piece.finish is not None:
            turn = trajectory[place]
            live = place < first_bad and turn not in trained
            if live:
                trained.add(turn)
            place += 1
        spans += [
            span if live or span.origin is not Origin.SAMPLED else replace(span, trained=False) for span in piece.spans
        ]
    return tuple(spans), {
        "tito": {"hard": report.hard, "soft": report.soft},
        "turns": len(trajectory),
        "leaf": leaf.turn_id,
        "cached_tokens": sum(t.generation.cached_tokens for t in trajectory if t.generation is not None),
    }


def _masked(span: Span) -> Span:
    return replace(span, trained=False) if span.origin is Origin.SAMPLED else span


def _without_tokens(turns: Sequence[Turn], prompt_id: str, rollout_id: str, metadata: Mapping[str, Any]) -> Sample:
    last = turns[-1]
    return Sample(
        prompt_id=prompt_id,
        rollout_id=rollout_id,
        spans=(),
        finish=Finish.LENGTH,
        messages=last.conversation(),
        metadata={**metadata, "tito": {"hard": 0, "soft": 0}, "turns": 0, "leaf": last.turn_id},
    )


def _continued(turns: Sequence[Turn]) -> set[Turn]:
    return {turn.parent for turn in turns if turn.parent is not None}


def _superseded(turns: Sequence[Turn]) -> set[Turn]:
    """Answers that nothing continues and that a later sibling answered the same request again."""
    continued = _continued(turns)
    alike: dict[tuple[Turn | None, tuple[str, ...], str], list[Turn]] = defaultdict(list)
    for turn in turns:
        alike[turn.parent, turn.keys, turn.tools_key].append(turn)
    found = set()
    for siblings in alike.values():
        latest = max((turn.sibling for turn in siblings if turn.delivered), default=-1)
        found |= {turn for turn in siblings if turn.sibling < latest and turn not in continued}
    return found
