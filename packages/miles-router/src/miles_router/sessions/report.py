"""A session as JSON: its turns, how they hang together, and whether their tokens hold."""

from collections.abc import Mapping, Sequence
from typing import Any

from miles_core.errors import TokenError
from miles_router.sessions.pickers import all_leaves
from miles_router.sessions.session import Session
from miles_router.sessions.tree import Turn
from miles_tito import ChatTokenizer


def describe(session: Session, turns: Sequence[Turn], chat: ChatTokenizer) -> Mapping[str, Any]:
    """What `GET /sessions/{id}` answers. mismatch: for each leaf the comparison with a canonical render."""
    leaves = all_leaves(turns).ends
    return {
        "session_id": session.session_id,
        "metadata": dict(session.spec.metadata),
        "sampling": session.spec.sampling.model_dump(exclude_none=True),
        "seed": session.seed,
        "max_seq_len": session.spec.max_seq_len,
        "turns": [_turn(turn) for turn in turns],
        "tree": {turn.turn_id: None if turn.parent is None else turn.parent.turn_id for turn in turns},
        "leaves": [leaf.turn_id for leaf in leaves],
        "mismatch": {leaf.turn_id: _mismatch(leaf, chat) for leaf in leaves},
        "in_flight": len(session.running),
        "failed_turns": session.failed,
        "log_damaged": session.damaged,
    }


def _turn(turn: Turn) -> Mapping[str, Any]:
    generation = turn.generation
    return {
        "turn_id": turn.turn_id,
        "dialect": turn.dialect,
        "extends": turn.extends,
        "not_extendable": turn.not_extendable,
        "request": [dict(message) for message in turn.new_messages],
        "response": dict(turn.message),
        "finish": turn.finish,
        "prompt_tokens": turn.prompt_tokens,
        "ids": [] if generation is None else list(generation.ids),
        "logprobs": [] if generation is None else list(generation.logprobs),
        "weight_versions": [] if generation is None else list(generation.weight_versions),
        "counters": {} if generation is None else dict(generation.counters),
        "delivered": turn.delivered,
    }


def _mismatch(turn: Turn, chat: ChatTokenizer) -> Mapping[str, Any]:
    try:
        report = chat.verify(turn.transcript)
    except TokenError as error:
        return {"error": str(error)}
    first = report.first
    return {
        "hard": report.hard,
        "soft": report.soft,
        "counts": dict(report.counts),
        "first": None if first is None else {"kind": str(first.kind), "turn": first.turn, "at": str(first.divergence)},
    }
