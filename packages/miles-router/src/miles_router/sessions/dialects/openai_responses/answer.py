"""A recorded turn as a response object."""

from collections.abc import Mapping, Sequence
from typing import Any

from miles_router.sessions.dialects.dialect import AnswerFacts
from miles_router.sessions.dialects.parts import Part, parts_of
from miles_router.sessions.session import Session
from miles_router.sessions.tree import Turn

NAME = "openai_responses"


def response(turn: Turn, facts: AnswerFacts, *, output: Sequence[Mapping[str, Any]] | None = None) -> Mapping[str, Any]:
    """The response that a turn is. output: the items that a stream already showed."""
    names = Names(facts.session.session_id, turn.turn_id)
    if output is None:
        output = [item(part, names, done=True) for part in parts_of(turn.message)]
    cut = turn.finish == "length"
    return {
        **head(names, facts, turn.notes, turn.tools),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": turn.conversation()[0]["content"] if turn.notes.get("instructions") else None,
        "output": list(output),
        "usage": usage(turn, facts),
    }


def find_response(session: Session, response_id: Any) -> Turn | None:
    """The stored turn that a response id names, None when there is none in this session."""
    for turn in session.tree.turns:
        stored = turn.dialect == NAME and turn.notes.get("store")
        if stored and Names(session.session_id, turn.turn_id).response == response_id:
            return turn
    return None


class Names:
    """The ids of one response and its items."""

    def __init__(self, session_id: str, turn_id: str) -> None:
        self._turn = f"{session_id}_{turn_id}"
        self.response = f"resp_{self._turn}"

    def item(self, part: Part) -> str:
        """The id of an item, by its kind, turn and place."""
        kind = {"reasoning": "rs", "text": "msg", "call": "fc"}[part.kind]
        return f"{kind}_{self._turn}_{part.number}"


def head(
    names: Names, facts: AnswerFacts, notes: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What is known of a response before it is made."""
    pinned = facts.session.spec.sampling
    return {
        "id": names.response,
        "object": "response",
        "created_at": notes["created_at"],
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": notes["max_output_tokens"],
        "max_tool_calls": None,
        "metadata": notes["metadata"],
        "model": facts.model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": notes["previous_response_id"],
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "store": notes["store"],
        "temperature": _first(pinned.temperature, notes["temperature"]),
        "text": {"format": {"type": "text"}},
        "tool_choice": notes["tool_choice"],
        "tools": [{"type": "function", "strict": False, **tool["function"]} for tool in tools],
        "top_logprobs": 0,
        "top_p": _first(pinned.top_p, notes["top_p"]),
        "truncation": "disabled",
        "usage": None,
        "user": None,
    }


def item(part: Part, names: Names, *, done: bool) -> dict[str, Any]:
    """An output item, empty while it is not done."""
    found: dict[str, Any] = {"id": names.item(part), "status": "completed" if done else "in_progress"}
    if part.kind == "call":
        arguments = part.text if done else ""
        return {**found, "type": "function_call", "call_id": part.call_id, "name": part.name, "arguments": arguments}
    content = [text_part(part)] if done else []
    if part.kind == "reasoning":
        return {**found, "type": "reasoning", "summary": [], "content": content}
    return {**found, "type": "message", "role": "assistant", "content": content}


def text_part(part: Part, *, empty: bool = False) -> dict[str, Any]:
    """The one content part of a text or reasoning item."""
    shown = "" if empty else part.text
    if part.kind == "reasoning":
        return {"type": "reasoning_text", "text": shown}
    return {"type": "output_text", "text": shown, "annotations": [], "logprobs": []}


def usage(turn: Turn, facts: AnswerFacts) -> Mapping[str, Any]:
    """Token counts of the turn; reasoning is counted as the tokenizer spells its text."""
    generation = turn.generation
    sampled = 0 if generation is None else len(generation.ids)
    reasoning = turn.message.get("reasoning_content")
    spelled = len(facts.chat.vocabulary.encode(reasoning)[0]) if reasoning else 0
    return {
        "input_tokens": turn.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0 if generation is None else generation.cached_tokens},
        "output_tokens": sampled,
        "output_tokens_details": {"reasoning_tokens": min(spelled, sampled)},
        "total_tokens": turn.prompt_tokens + sampled,
    }


def _first(*values: float | None) -> float:
    return next((value for value in values if value is not None), 1.0)
