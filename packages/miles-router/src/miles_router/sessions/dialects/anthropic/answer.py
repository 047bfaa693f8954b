"""A recorded turn as a message object."""

from collections.abc import Mapping
from typing import Any

import xxhash

from miles_router.sessions.dialects.anthropic.messages import call_input
from miles_router.sessions.dialects.dialect import AnswerFacts
from miles_router.sessions.dialects.parts import Part, parts_of
from miles_router.sessions.tree import Turn


def message(turn: Turn, facts: AnswerFacts, *, thinking: bool) -> Mapping[str, Any]:
    """The message that a turn is. thinking: with its blocks of thinking."""
    return {
        **head(turn.turn_id, facts),
        "content": [block(part) for part in parts_of(turn.message, with_reasoning=thinking)],
        **ending(turn),
        "usage": usage(turn),
    }


def head(turn_id: str, facts: AnswerFacts) -> dict[str, Any]:
    """What is known of a message before it is made."""
    return {
        "id": f"msg_{facts.session.session_id}_{turn_id}",
        "type": "message",
        "role": "assistant",
        "model": facts.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def block(part: Part, *, empty: bool = False) -> dict[str, Any]:
    """One content block. empty: as a stream begins it."""
    if part.kind == "call":
        given = {} if empty else call_input(part.text, name=part.name)
        return {"type": "tool_use", "id": part.call_id, "name": part.name, "input": given}
    shown = "" if empty else part.text
    if part.kind == "reasoning":
        return {"type": "thinking", "thinking": shown, "signature": "" if empty else signature(part)}
    return {"type": "text", "text": shown}


def signature(part: Part) -> str:
    """What clients send back with thinking: a digest of it."""
    return xxhash.xxh3_128_hexdigest(part.text.encode())


def ending(turn: Turn) -> dict[str, Any]:
    """Why the message ended."""
    if turn.finish == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    matched = None if turn.generation is None else turn.generation.matched
    if isinstance(matched, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": matched}
    return {"stop_reason": "tool_use" if turn.message.get("tool_calls") else "end_turn", "stop_sequence": None}


def usage(turn: Turn) -> dict[str, int]:
    """Token counts of the turn: the prompt's are those read from the cache and the rest."""
    generation = turn.generation
    cached = 0 if generation is None else min(generation.cached_tokens, turn.prompt_tokens)
    return {
        "input_tokens": turn.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": 0 if generation is None else len(generation.ids),
    }
