"""Recorded turns to training samples: every sampled token is trained at most once, and proved before that."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from miles_core.errors import SessionError
from miles_core.sample import Finish, Origin, Sample, Span
from miles_router.sessions.alignment import Output, align
from miles_router.sessions.experts import join_experts
from miles_router.sessions.pickers import Picked
from miles_router.sessions.tree import Turn
from miles_tito import ChatTokenizer
from miles_tito.transcript import Piece


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """What all samples of a session carry."""

    prompt_id: str
    rollout_id: str
    metadata: Mapping[str, Any]


def assemble(
    turns: Sequence[Turn],
    picked: Picked,
    chat: ChatTokenizer,
    naming: Naming,
    *,
    per: Literal["leaf", "turn"] = "leaf",
) -> list[Sample]:
    """One sample for each picked trajectory; a turn that several share is trained in the first, masked in the others.

    per: with "turn" every turn has a sample of its own, in which all before it is masked. A conversation that never had
    room for an answer gives one sample without tokens. SessionError 422 when there is no turn at all, or when ids, or
    routed experts, cannot be proved to be the engine's.
    """
    if not turns:
        raise SessionError("samples cannot be assembled: the session has no recorded turn.", status=422)
    naming = replace(
        naming,
        metadata={
            **naming.metadata,
            "not_extendable": sum(turn.not_extendable is not None for turn in turns),
            **picked.left_out,
        },
    )
    full = {turn.parent for turn in turns if turn.generation is None and turn.extends}
    trained: set[Turn] = set()
    samples = []
    for end in picked.ends:
        proof = _prove(end, chat)
        for turn in end.trajectory() if per == "turn" else [end]:
            if turn in trained and per == "turn":
                continue
            samples.append(_sample(turn, proof, naming, trained, alone=per == "turn", overflowed=turn in full))
    if samples:
        return samples
    if not any(turn.generation is None for turn in turns):
        raise SessionError("samples cannot be assembled: no recorded answer reached its caller.", status=422)
    return [_without_tokens(turns, naming)]


@dataclass(frozen=True, slots=True)
class _Proof:
    """How a trajectory compares with a canonical render. first_bad: its first turn that does not hold."""

    hard: int
    soft: int
    first_bad: int


def _prove(end: Turn, chat: ChatTokenizer) -> _Proof:
    """Compare a trajectory with a canonical render; SessionError 422 unless its ids are the engine's own."""
    trajectory = end.trajectory()
    outputs = [
        Output(start=turn.prompt_tokens, ids=turn.generation.ids, prompt_digest=turn.prompt_digest)
        for turn in trajectory
        if turn.generation is not None
    ]
    placed = align(end.all_ids(), outputs, may_trim=chat.stop_token_ids)
    if [(each.start, each.end) for each in placed] != list(_sampled_places(end.transcript.pieces())):
        raise SessionError(
            f"samples cannot be assembled: sampled tokens of turn {end.turn_id} do not lie where they were sampled.",
            status=422,
        )
    report = chat.verify(end.transcript)
    first_bad = report.first.turn if report.hard and report.first is not None else len(trajectory)
    return _Proof(report.hard, report.soft, first_bad)


def _sampled_places(pieces: Sequence[Piece]) -> Iterator[tuple[int, int]]:
    place = 0
    for piece in pieces:
        if piece.finish is not None:
            yield place, place + piece.num_tokens
        place += piece.num_tokens


def _sample(end: Turn, proof: _Proof, naming: Naming, trained: set[Turn], *, alone: bool, overflowed: bool) -> Sample:
    """The trajectory to `end`, masked where another sample trains it or where it cannot be proved.

    Turns that end up trained here join `trained`. alone: nothing but the last turn is trained.
    """
    trajectory = end.trajectory()
    owned = [turn for turn in (trajectory[-1:] if alone else trajectory) if turn not in trained]
    live = set(owned) & set(trajectory[: proof.first_bad])
    trained |= live
    return Sample(
        prompt_id=naming.prompt_id,
        rollout_id=naming.rollout_id,
        spans=tuple(_spans(end, trajectory, live)),
        finish=Finish.LENGTH if overflowed or end.finish == "length" else Finish.STOP,
        routing=join_experts([_experts(turn) for turn in trajectory], num_tokens=end.transcript.num_tokens),
        messages=end.conversation(),
        metadata={
            **naming.metadata,
            "tito": {"hard": proof.hard, "soft": proof.soft},
            "turns": len(trajectory),
            "leaf": end.turn_id,
            "cached_tokens": sum(t.generation.cached_tokens for t in trajectory if t.generation is not None),
            "counters": _counters(owned),
        },
    )


def _spans(end: Turn, trajectory: Sequence[Turn], live: set[Turn]) -> Iterator[Span]:
    sampling = iter(trajectory)
    for piece in end.transcript.pieces():
        masked = piece.finish is not None and next(sampling) not in live
        for span in piece.spans:
            yield replace(span, trained=False) if masked and span.origin is Origin.SAMPLED else span


def _experts(turn: Turn) -> tuple[int, Any]:
    assert turn.generation is not None
    return turn.generation.first_row, turn.generation.routing


def _counters(turns: Sequence[Turn]) -> Mapping[str, int]:
    """Sums of the engine's counts (tokens, speculative decoding, prefix cache); its rates have no sum."""
    total: Counter[str] = Counter()
    for turn in turns:
        counters = {} if turn.generation is None else turn.generation.counters
        total.update({name: value for name, value in counters.items() if isinstance(value, int)})
    return dict(sorted(total.items()))


def _without_tokens(turns: Sequence[Turn], naming: Naming) -> Sample:
    last = turns[-1]
    return Sample(
        prompt_id=naming.prompt_id,
        rollout_id=naming.rollout_id,
        spans=(),
        finish=Finish.LENGTH,
        messages=last.conversation(),
        metadata={**naming.metadata, "tito": {"hard": 0, "soft": 0}, "turns": 0, "leaf": last.turn_id},
    )
