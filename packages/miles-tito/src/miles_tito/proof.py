"""The proof, once per template and kind of append, that a suffix does not depend on what came before."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from miles_tito.derive import Deriver, History
from miles_tito.errors import NotExtendable
from miles_tito.profile import CALL, EPOCH, LOOK

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
    shape = f"{'text' if turn.get('content') or not calls else ''}{calls or ''}"
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
        self._deriver = deriver
        self._grown: dict[bool, list[History]] = {}

    def prove(self, turn: Message, new: Sequence[Message], *, with_tools: bool) -> str:
        """A bounded proof when that suffix is the one of every history which the template lets grow."""
        tools = (_OTHER,) if with_tools else ()
        if with_tools not in self._grown:
            grown = [_grow(self._deriver, messages, tools) for messages in _histories()]
            self._grown[with_tools] = [history for history in grown if history is not None]
        for proof in (BOUNDED, BOUNDED_WITH_TOOLS):
            if self._holds(turn, new, proof, self._grown[with_tools], tools):
                return proof
        return FROM_HISTORY

    def _holds(
        self,
        turn: Message,
        new: Sequence[Message],
        proof: str,
        histories: Sequence[History],
        tools: Sequence[Message],
    ) -> bool:
        try:
            suffix = self._deriver.bounded(turn, new, EPOCH, tools=context_tools(proof))
            return suffix is not None and all(
                self._deriver.whole(history, turn, new, tools, EPOCH).text == suffix.text for history in histories
            )
        except NotExtendable:
            return False


def context_tools(proof: str) -> tuple[Message, ...]:
    """Tools of the bounded context: none, unless the template writes tool calls only when it is given some."""
    return (LOOK,) if proof == BOUNDED_WITH_TOOLS else ()


def _histories() -> Iterator[list[Message]]:
    user, system = {"role": "user", "content": "first"}, {"role": "system", "content": "rules"}
    says = {"role": "assistant", "content": "answer"}
    thinks = {"role": "assistant", "content": "answer", "reasoning_content": "reason"}
    for one, two in (("h1aaaaaaa", "h2aaaaaaa"),):
        calls = _calling([one], "")
        both = _calling([one, two], "")
        chain = [user, calls, _result(one), _calling([two], "says"), _result(two)]
        yield [user]
        yield [system, user]
        yield [user, says, {"role": "user", "content": "second"}]
        yield chain
        yield [system, user, both, _result(one), _result(two), thinks, {"role": "user", "content": "second"}]
        yield [user, {**calls, "reasoning_content": "reason"}, _result(one)]
        yield [*chain, thinks, {"role": "user", "content": "second"}, {**calls, "reasoning_content": "r"}, _result(one)]


def _calling(ids: Sequence[str], content: str) -> Message:
    return {"role": "assistant", "content": content, "tool_calls": [{**CALL, "id": number} for number in ids]}


def _result(number: str) -> Message:
    return {"role": "tool", "tool_call_id": number, "name": "look", "content": f"result {number}"}


def _grow(deriver: Deriver, messages: Sequence[Message], tools: Sequence[Message]) -> History | None:
    """The history as it grows append by append; None when the template does not let it."""
    turns = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    ends = [*turns, len(messages)]
    try:
        prompt = deriver.marked(messages[: ends[0]], tools, EPOCH, "user")
        grown = History(messages=tuple(messages[: ends[0]]), fixed=(prompt,), sampled=(None,))
        for place, end in zip(turns, ends[1:], strict=True):
            suffix = deriver.whole(grown, messages[place], messages[place + 1 : end], tools, EPOCH)
            grown = History(
                messages=tuple(messages[:end]),
                fixed=(*grown.fixed, suffix.text),
                sampled=(*grown.sampled[:-1], suffix.body, None),
            )
    except NotExtendable:
        return None
    return grown
