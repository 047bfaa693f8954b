"""What would let a refused append through: a template argument, another role, another grouping; found by trying.

Every suggestion has been tried: the append it describes extends every history that the prover grows, or it is not made.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from miles_tito.derive import Deriver
from miles_tito.errors import NotExtendable
from miles_tito.proof import Prover, kind_of
from miles_tito.switches import switches

Message = Mapping[str, Any]


_MAX_KNOWN = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Cure:
    """help: one sentence. arguments: the template arguments it asks for, if it does."""

    help: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


class Cures:
    """The cures found for one template, each looked for once (a reason may quote a message, so they are bounded)."""

    def __init__(self, prover: Prover) -> None:
        self._prover = prover
        self._known: dict[tuple[str, str], Cure | None] = {}

    def helped(self, error: NotExtendable, turn: Message, new: Sequence[Message], *, with_tools: bool) -> NotExtendable:
        """The refusal with what would let that kind of append through, where something does."""
        key = (kind_of(turn, new, with_tools=with_tools), error.reason)
        if key not in self._known:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[key] = cure_for(self._prover, turn, new, with_tools=with_tools)
        cure = self._known[key]
        return error if cure is None else error.with_help(cure.help, cure.arguments)


def cure_for(prover: Prover, turn: Message, new: Sequence[Message], *, with_tools: bool) -> Cure | None:
    """The first thing that works, arguments before other messages; None when nothing tried does."""
    deriver = prover.deriver
    for arguments in switches(deriver.template):
        other = Deriver(deriver.template.with_kwargs(arguments), deriver.marker, deriver.stops, deriver.prefills)
        if prover.sees(other, turn, new, with_tools=with_tools) and Prover(other).extends(
            turn, new, with_tools=with_tools
        ):
            return Cure(help=f"Pass template_kwargs={arguments!r}: with it this append is sound.", arguments=arguments)
    for help, last, instead in _alternatives(turn, new):
        if prover.extends(last, instead, with_tools=with_tools):
            return Cure(help=help)
    return None


def _alternatives(turn: Message, new: Sequence[Message]) -> Iterator[tuple[str, Message, Sequence[Message]]]:
    """`(help, turn, new messages)` in the order in which they cost the caller least."""
    yield from _groupings(turn, new)
    yield from _other_turns(turn, new)
    for role in ("developer", "system", "user"):
        moved = [_as(message, role) for message in new]
        if moved != list(new):
            yield f"Append the {_others(new, role)} message with the role {role!r}: that is sound.", turn, moved
            if turn.get("tool_calls"):
                help = f"{_WRITTEN_OUT}, and append its results with the role {role!r}: that is sound."
                yield help, _written_out(turn), moved


_WRITTEN_OUT = "Record the turn with its calls as text in the content and without tool_calls"


def _groupings(turn: Message, new: Sequence[Message]) -> Iterator[tuple[str, Message, Sequence[Message]]]:
    roles = [message["role"] for message in new]
    if len(set(roles)) > 1:
        run = [message for place, message in enumerate(new) if set(roles[: place + 1]) == {roles[0]}]
        yield f"Append the {roles[0]} messages alone, and the others after the next turn: that is sound.", turn, run
    calls = list(turn.get("tool_calls") or ())
    if len(calls) > 1:
        kept = {**turn, "tool_calls": calls[:1]}
        first = [message for message in new if message["role"] != "tool" or message is new[0]]
        yield "Let a turn make one tool call: with a single call and its result it is sound.", kept, first


def _other_turns(turn: Message, new: Sequence[Message]) -> Iterator[tuple[str, Message, Sequence[Message]]]:
    reasonless = {
        key: value for key, value in turn.items() if key not in ("reasoning_content", "reasoning", "thinking")
    }
    if len(reasonless) < len(turn):
        yield "Record the turn's message without its reasoning: the ids keep it, and it is sound.", reasonless, new
    if turn.get("tool_calls"):
        if turn.get("content"):
            help = "Record the turn's message without its text beside the tool calls: the ids keep it, and it is sound."
            yield help, {**turn, "content": ""}, new
        yield f"{_WRITTEN_OUT}: that is sound.", _written_out(turn), new


def _written_out(turn: Message) -> Message:
    calls = [f"{call['function']['name']} {call['function'].get('arguments')}" for call in turn["tool_calls"]]
    text = "\n".join([str(turn.get("content") or ""), *calls]).strip()
    return {**{key: value for key, value in turn.items() if key != "tool_calls"}, "content": text}


def _as(message: Message, role: str) -> Message:
    """A message of an environment with another role, which only its content survives."""
    if message["role"] in ("user", "assistant", role) or (message["role"] == "tool" and role != "user"):
        return message
    return {"role": role, "content": message.get("content")}


def _others(new: Sequence[Message], role: str) -> str:
    return " and the ".join(dict.fromkeys(str(m["role"]) for m in new if _as(m, role) is not m))
