"""The proof, once per template and kind of append, that a suffix does not depend on what came before."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from miles_tito.derive import USER, Deriver, History, Suffix
from miles_tito.errors import NotExtendable
from miles_tito.histories import long_stage, repeated, stages
from miles_tito.profile import CALLS, EPOCH, LOOK, TOOL
from miles_tito.render import reasoning_of

Message = Mapping[str, Any]
BOUNDED, BOUNDED_WITH_TOOLS, FROM_HISTORY = "bounded", "bounded with tools", "history"


def may_be_bounded(new: Sequence[Message]) -> bool:
    """True unless an assistant message is injected: how its turn is written may depend on everything around it."""
    return all(message["role"] != "assistant" for message in new)


def kind_of(turn: Message, new: Sequence[Message], *, with_tools: bool, phrases: Collection[str] = frozenset()) -> str:
    """What a suffix may depend on, as a key: shape of the turn, roles (runs in the plural), tools given.

    After that the lengths of runs, and those names of functions that the template has among its `phrases`.
    """
    calls = len([call for call in turn.get("tool_calls") or () if not call.get("invalid")])
    shape = f"{'why+' if reasoning_of(turn) else ''}{'text' if turn.get('content') or not calls else ''}{calls or ''}"
    runs: list[list[Any]] = []
    for message in new:
        if runs and runs[-1][0] == message["role"]:
            runs[-1][1] += 1
        else:
            runs.append([message["role"], 1])
    roles = "+".join(f"{role}{'s' if length > 1 else ''}" for role, length in runs)
    lengths = [",".join(str(length) for _, length in runs)] if any(length > 1 for _, length in runs) else []
    names = sorted(_names(turn, new) & set(phrases)) if phrases else []
    return "|".join([f"{shape}>{roles}", *lengths, *names, *(["tools"] if with_tools else [])])


def _names(turn: Message, new: Sequence[Message]) -> set[str]:
    """Names of the functions called and answered."""
    called = {str(call["function"]["name"]) for call in turn.get("tool_calls") or ()}
    return called | {str(message["name"]) for message in new if message.get("name")}


@dataclass(frozen=True, slots=True)
class _Grounds:
    """What a suffix is proved on: histories, and whether the template takes the longest for the sum of its steps."""

    histories: tuple[History, ...]
    steady: bool


class Prover:
    """Proves kinds of append for one template; the histories it grows are kept."""

    def __init__(self, deriver: Deriver) -> None:
        self.deriver = deriver
        self._grounds: dict[tuple[str, ...], _Grounds] = {}

    def prove(self, turn: Message, new: Sequence[Message], *, with_tools: bool) -> tuple[str, list[str]]:
        """A bounded proof when that suffix is the one of every history which the template lets grow.

        With it come the template's own phrases that change the suffix when an earlier message says them: after such a
        message the proof does not hold.
        """
        tools = _tools(turn, new) if with_tools else ()
        grounds = self._grown(tools)
        for proof in (BOUNDED, BOUNDED_WITH_TOOLS) if grounds.steady else ():
            suffix = self._proved(turn, new, proof, grounds.histories, tools)
            if suffix is not None:
                return proof, list(self._triggers(suffix, turn, new, tools))
        return FROM_HISTORY, []

    def extends(self, turn: Message, new: Sequence[Message], *, with_tools: bool) -> bool:
        """True when some history can be grown and the append is right after every one that can."""
        tools = _tools(turn, new) if with_tools else ()
        histories = self._grown(tools).histories
        try:
            for history in histories:
                self.deriver.whole(history, turn, new, tools, EPOCH)
        except NotExtendable:
            return False
        return bool(histories)

    def sees(self, other: Deriver, turn: Message, new: Sequence[Message], *, with_tools: bool) -> bool:
        """True when the other deriver's template writes that append otherwise after some history."""
        tools = _tools(turn, new) if with_tools else ()
        histories = [history.messages for history in self._grown(tools).histories] or [(USER,)]
        lasts = ([*history, turn, *new] for history in (histories[0], max(histories, key=len)))
        return any(_written(other, last, tools) != _written(self.deriver, last, tools) for last in lasts)

    def _grown(self, tools: Sequence[Message]) -> _Grounds:
        key = tuple(str(tool["function"]["name"]) for tool in tools)
        if key not in self._grounds:
            long, steady = long_stage(self.deriver, tools)
            histories = [*stages(self.deriver, tools), *([long] if long else [])]
            self._grounds[key] = _Grounds(tuple(histories), steady)
        return self._grounds[key]

    def _proved(
        self,
        turn: Message,
        new: Sequence[Message],
        proof: str,
        histories: Sequence[History],
        tools: Sequence[Message],
    ) -> Suffix | None:
        try:
            suffix = self.deriver.bounded(turn, new, EPOCH, tools=context_tools(proof))
            if suffix is None:
                return None
            told_before = repeated(self.deriver, turn, new, tools)
            follows = (self._follows(history, suffix, turn, new, tools) for history in [*histories, *told_before])
            return suffix if all(follows) else None
        except NotExtendable:
            return None

    def _follows(
        self, history: History, suffix: Suffix, turn: Message, new: Sequence[Message], tools: Sequence[Message]
    ) -> bool:
        """True when the render after this history ends in the suffix and shows all before the turn as it was."""
        text = self.deriver.marked([*history.messages, turn, *new], tools, EPOCH, str(new[0]["role"]))
        if not text.endswith(suffix.text):
            return False
        before = text[: len(text) - len(suffix.text)]
        return not self.deriver.align(before, history.fixed, history.sampled[:-1]).differences

    def _triggers(
        self, suffix: Suffix, turn: Message, new: Sequence[Message], tools: Sequence[Message]
    ) -> Iterator[str]:
        """Phrases of the template after which it ends otherwise than in the suffix."""
        for past in _SAID:
            if self._ends(past("zq"), suffix, turn, new, tools):
                break
        else:
            return
        for phrase in self.deriver.template.phrases:
            if not self._ends(past(phrase), suffix, turn, new, tools) and self._begins(past(phrase), tools):
                yield phrase

    def _ends(
        self, past: Sequence[Message], suffix: Suffix, turn: Message, new: Sequence[Message], tools: Sequence[Message]
    ) -> bool:
        text = _written(self.deriver, [*past, turn, *new], tools)
        return text is not None and text.endswith(suffix.text)

    def _begins(self, past: Sequence[Message], tools: Sequence[Message]) -> bool:
        return _written(self.deriver, past, tools) is not None


def _written(deriver: Deriver, messages: Sequence[Message], tools: Sequence[Message]) -> str | None:
    try:
        return deriver.marked(messages, tools, EPOCH, str(messages[-1]["role"]))
    except NotExtendable:
        return None


def _tools(turn: Message, new: Sequence[Message]) -> tuple[Message, ...]:
    """Schemas under the names that are called, none of them that of bounded contexts.

    A suffix that repeats a schema, or looks one up, must not pass as independent of them.
    """
    return tuple(
        {
            "type": "function",
            "function": {"name": name, "description": "Finds.", "parameters": {"type": "object", "properties": {}}},
        }
        for name in sorted({"look", *_names(turn, new)})
    )


def context_tools(proof: str) -> tuple[Message, ...]:
    """Tools of the bounded context: none, unless the template writes tool calls only when it is given some."""
    return (LOOK,) if proof == BOUNDED_WITH_TOOLS else ()


def _say_all(text: str) -> list[Message]:
    return [*_say_rules(text), CALLS, {**TOOL, "content": text}]


def _say_rules(text: str) -> list[Message]:
    return [{"role": "system", "content": text}, *_say(text)]


def _say(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


_SAID = (_say_all, _say_rules, _say)
"""Histories that say something, by every role that the template may support."""
