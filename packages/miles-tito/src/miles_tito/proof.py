"""The proof, once per template and kind of append, that a suffix does not depend on what came before."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from miles_tito.derive import USER, Deriver, History
from miles_tito.errors import NotExtendable
from miles_tito.profile import CALL, EPOCH, LOOK
from miles_tito.render import reasoning_of

Message = Mapping[str, Any]
BOUNDED, BOUNDED_WITH_TOOLS, FROM_HISTORY = "bounded", "bounded with tools", "history"


_OTHER: Message = {
    "type": "function",
    "function": {"name": "look", "description": "Finds.", "parameters": {"type": "object", "properties": {}}},
}
"""Not the tool of bounded contexts: a suffix that repeats tool schemas must not pass as independent of them."""


def may_be_bounded(new: Sequence[Message]) -> bool:
    """True unless an assistant message is injected: how its turn is written may depend on everything around it."""
    return all(message["role"] != "assistant" for message in new)


def kind_of(turn: Message, new: Sequence[Message], *, with_tools: bool) -> str:
    """What a suffix may depend on, as a key: shape of the turn, roles (runs as one or more), tools given."""
    calls = min(len([call for call in turn.get("tool_calls") or () if not call.get("invalid")]), 2)
    shape = f"{'why+' if reasoning_of(turn) else ''}{'text' if turn.get('content') or not calls else ''}{calls or ''}"
    roles: list[str] = []
    for message in new:
        role = str(message["role"])
        if roles and roles[-1].rstrip("s") == role:
            roles[-1] = f"{role}s"
        else:
            roles.append(role)
    return f"{shape}>{'+'.join(roles)}{'|tools' if with_tools else ''}"


class Prover:
    """Proves kinds of append for one template; the histories it grows are kept."""

    def __init__(self, deriver: Deriver) -> None:
        self.deriver = deriver
        self._grown: dict[bool, list[History]] = {}
        self._steady: dict[bool, bool] = {}

    def prove(self, turn: Message, new: Sequence[Message], *, with_tools: bool) -> str:
        """A bounded proof when that suffix is the one of every history which the template lets grow."""
        histories = self._histories(with_tools)
        if not self._steady[with_tools]:
            return FROM_HISTORY
        for proof in (BOUNDED, BOUNDED_WITH_TOOLS):
            if self._holds(turn, new, proof, histories, _tools(with_tools)):
                return proof
        return FROM_HISTORY

    def extends(self, turn: Message, new: Sequence[Message], *, with_tools: bool) -> bool:
        """True when some history can be grown and the append is right after every one that can."""
        histories = self._histories(with_tools)
        try:
            for history in histories:
                self.deriver.whole(history, turn, new, _tools(with_tools), EPOCH)
        except NotExtendable:
            return False
        return bool(histories)

    def sees(self, other: Deriver, turn: Message, new: Sequence[Message], *, with_tools: bool) -> bool:
        """True when the other deriver's template writes that append otherwise after some history."""
        histories = self._histories(with_tools) or [History(messages=(USER,), fixed=(), sampled=())]
        lasts = (histories[0], max(histories, key=lambda history: len(history.messages)))
        return any(
            _written(other, history, turn, new, _tools(with_tools))
            != _written(self.deriver, history, turn, new, _tools(with_tools))
            for history in lasts
        )

    def _histories(self, with_tools: bool) -> list[History]:
        if with_tools not in self._grown:
            grown = _stages(self.deriver, _tools(with_tools))
            long, self._steady[with_tools] = _long_stage(self.deriver, _tools(with_tools))
            self._grown[with_tools] = [*grown, *([long] if long else [])]
        return self._grown[with_tools]

    def _holds(
        self,
        turn: Message,
        new: Sequence[Message],
        proof: str,
        histories: Sequence[History],
        tools: Sequence[Message],
    ) -> bool:
        try:
            suffix = self.deriver.bounded(turn, new, EPOCH, tools=context_tools(proof))
            return suffix is not None and all(
                self.deriver.whole(history, turn, new, tools, EPOCH).text == suffix.text for history in histories
            )
        except NotExtendable:
            return False


def _written(
    deriver: Deriver, history: History, turn: Message, new: Sequence[Message], tools: Sequence[Message]
) -> str | None:
    try:
        return deriver.marked([*history.messages, turn, *new], tools, EPOCH, str(new[0]["role"]))
    except NotExtendable:
        return None


def _tools(with_tools: bool) -> tuple[Message, ...]:
    return (_OTHER,) if with_tools else ()


def context_tools(proof: str) -> tuple[Message, ...]:
    """Tools of the bounded context: none, unless the template writes tool calls only when it is given some."""
    return (LOOK,) if proof == BOUNDED_WITH_TOOLS else ()


def _histories() -> Iterator[list[Message]]:
    """Conversations, each also under a system prompt, whose every stage is a history to prove a suffix under."""
    user, again = {"role": "user", "content": "first"}, {"role": "user", "content": "second"}
    says = {"role": "assistant", "content": "answer"}
    thinks = {**says, "reasoning_content": "reason"}
    one, two = "h1aaaaaaa", "h2aaaaaaa"
    calls, both = _calling([one], ""), _calling([one, two], "")
    thoughtful = {**calls, "reasoning_content": "reason"}
    for start in ([user], [{"role": "system", "content": "rules"}, user]):
        yield [*start, says, again]
        yield [*start, thinks, again, says, again]
        yield [
            *start,
            calls,
            _result(one),
            _calling([two], "says"),
            _result(two),
            thinks,
            again,
            thoughtful,
            _result(one),
        ]
        yield [*start, both, _result(one), _result(two), says, again]
        yield [*start, thoughtful, _result(one), both, _result(one), _result(two)]


def _calling(ids: Sequence[str], content: str) -> Message:
    return {"role": "assistant", "content": content, "tool_calls": [{**CALL, "id": number} for number in ids]}


def _result(number: str) -> Message:
    return {"role": "tool", "tool_call_id": number, "name": "look", "content": f"result {number}"}


def _stages(deriver: Deriver, tools: Sequence[Message]) -> list[History]:
    """Every stage of every history up to which the template lets it grow, append by append."""
    found: dict[str, History] = {}
    for messages in _histories():
        turns = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        stage: History | None = None
        for place, end in zip([0, *turns], [*turns, len(messages)], strict=True):
            key = repr(messages[:end])
            if key not in found:
                grown = _grown(deriver, stage, messages[place:end], tools)
                if grown is None:
                    break
                found[key] = grown
            stage = found[key]
    return list(found.values())


_LONG = 30
"""Turns of the long history: 61 messages, so that a template which forgets the oldest is noticed."""


def _long_stage(deriver: Deriver, tools: Sequence[Message]) -> tuple[History | None, bool]:
    """A long history made of steps that repeat, and whether the template takes it for what its steps add up to.

    No history, and nothing held against the template, where already the first rounds are refused or differ.
    """
    start = {"role": "user", "content": "first"}
    answer, question = {"role": "assistant", "content": "answer"}, {"role": "user", "content": "again"}
    call, result = _calling(["h1aaaaaaa"], ""), _result("h1aaaaaaa")
    for rounds in ([(answer, question), (call, result)], [(answer, question)]):
        stage = _grown(deriver, None, [start], tools)
        for turn, follow in [*rounds, *rounds]:
            stage = stage and _grown(deriver, stage, [turn, follow], tools)
        if stage is not None and stage.fixed[1 : len(rounds) + 1] == stage.fixed[len(rounds) + 1 :]:
            break
    else:
        return None, True
    times = _LONG // len(rounds)
    messages = (start, *[message for pair in rounds for message in pair] * times)
    fixed = (stage.fixed[0], *stage.fixed[1 : len(rounds) + 1] * times)
    try:
        text = deriver.marked(messages, tools, EPOCH, "user")
    except NotExtendable:
        return None, False
    if deriver.align(text, fixed, (None,) * _LONG).differences:
        return None, False
    return History(messages=messages, fixed=fixed, sampled=(None,) * (_LONG + 1)), True


def _grown(
    deriver: Deriver, stage: History | None, messages: Sequence[Message], tools: Sequence[Message]
) -> History | None:
    """The stage with one more turn and what follows it; a prompt without a stage; None when that is refused."""
    try:
        if stage is None:
            prompt = deriver.marked(messages, tools, EPOCH, "user")
            return History(messages=tuple(messages), fixed=(prompt,), sampled=(None,))
        suffix = deriver.whole(stage, messages[0], messages[1:], tools, EPOCH)
    except NotExtendable:
        return None
    return History(
        messages=(*stage.messages, *messages),
        fixed=(*stage.fixed, suffix.text),
        sampled=(*stage.sampled[:-1], suffix.body, None),
    )
