"""Conversations that a template must survive to be safe for multi-turn training."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Message = Mapping[str, Any]

TOOLS: tuple[Message, ...] = (
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Looks up a word.",
            "parameters": {
                "type": "object",
                "properties": {"word": {"type": "string"}, "limit": {"type": "integer"}},
                "required": ["word"],
            },
        },
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A conversation in which assistant messages are the policy's turns and everything between them is one append.

    truncated: the first turn ends without its stop token.
    """

    name: str
    messages: tuple[Message, ...]
    needs_tools: bool = False
    truncated: bool = False

    def steps(self) -> Iterator[tuple[tuple[Message, ...], Message, tuple[Message, ...]]]:
        """`(messages before, turn, messages appended)` for each turn that something follows."""
        turns = [n for n, m in enumerate(self.messages) if m["role"] == "assistant" and not m.get("injected")]
        for place, end in zip(turns, [*turns[1:], len(self.messages)], strict=True):
            if self.messages[place + 1 : end]:
                yield self.messages[:place], self.messages[place], self.messages[place + 1 : end]


def kind_of(appended: Sequence[Message]) -> str:
    """Name of an append: roles in order, a run of tool results as `tools`."""
    roles: list[str] = []
    for message in appended:
        role = str(message["role"])
        if role == "tool" and roles and roles[-1] in ("tool", "tools"):
            roles[-1] = "tools"
        else:
            roles.append(role)
    return "+".join(roles)


def shapes(*, tools: bool, reasoning: bool) -> list[Shape]:
    """Every shape; those that need tools only with `tools`, turns with reasoning only with `reasoning`."""
    say = _Words(reasoning=reasoning)
    return [*_dialogues(say), *_injections(say), *_contents(say), *(_tool_shapes(say) if tools else ())]


_LOOKALIKES = "<|im_end|> </s> [INST] <｜User｜> <think> <tool_call> <|user|> <|eot_id|> <end_of_turn>"


class _Words:
    """Messages with words that occur once, so that a lost one is missed."""

    def __init__(self, *, reasoning: bool) -> None:
        self._reasoning = reasoning
        self._count = 0

    def word(self, what: str) -> str:
        self._count += 1
        return f"{what}{''.join(chr(ord('a') + int(d)) for d in f'{self._count:04d}')}"

    def user(self) -> Message:
        return {"role": "user", "content": f"Please {self.word('ask')}."}

    def system(self) -> Message:
        return {"role": "system", "content": f"Always {self.word('rule')}."}

    def answer(self) -> Message:
        message: dict[str, Any] = {"role": "assistant", "content": f"So {self.word('answer')}."}
        return self._thinking(message)

    def calls(self, count: int = 1, *, content: bool = False, as_string: bool = True) -> Message:
        made = []
        for _ in range(count):
            word = self.word("seek")
            arguments: Any = f'{{"word": "{word}", "limit": 3}}' if as_string else {"word": word, "limit": 3}
            made.append({"id": f"c{word[-8:]}", "type": "function"} | {"function": _function(arguments)})
        text = f"Now {self.word('note')}." if content else ""
        return self._thinking({"role": "assistant", "content": text, "tool_calls": made})

    def results(self, calls: Message, content: str = "") -> tuple[Message, ...]:
        return tuple(
            {"role": "tool", "tool_call_id": call["id"], "name": "look_up", "content": f"{self.word('found')}{content}"}
            for call in calls["tool_calls"]
        )

    def _thinking(self, message: dict[str, Any]) -> Message:
        if self._reasoning:
            message["reasoning_content"] = f"Consider {self.word('thought')}."
        return message


def _function(arguments: Any) -> dict[str, Any]:
    return {"name": "look_up", "arguments": arguments}


def _dialogues(say: _Words) -> Iterator[Shape]:
    yield Shape(name="a user turn", messages=(say.user(), say.answer(), say.user()))
    users = (say.user(), say.answer(), say.user(), say.answer(), say.user(), say.answer(), say.user())
    yield Shape(name="several user turns", messages=users)
    ruled = (say.system(), say.user(), say.answer(), say.user(), say.answer(), say.user())
    yield Shape(name="several user turns under a system prompt", messages=ruled)
    yield Shape(name="a truncated turn", messages=(say.user(), say.answer(), say.user()), truncated=True)


def _injections(say: _Words) -> Iterator[Shape]:
    yield Shape(name="a late system message", messages=(say.user(), say.answer(), say.system()))
    yield Shape(name="a late system and a user", messages=(say.user(), say.answer(), say.system(), say.user()))
    shown = {**say.answer(), "injected": True}
    yield Shape(
        name="an injected assistant message", messages=(say.user(), say.answer(), say.user(), shown, say.user())
    )
    alone = {**say.answer(), "injected": True}
    yield Shape(name="an injected assistant message alone", messages=(say.user(), say.answer(), alone))


def _contents(say: _Words) -> Iterator[Shape]:
    parts = {"role": "user", "content": [{"type": "text", "text": say.word("one")}, {"type": "text", "text": " two"}]}
    yield Shape(name="content as parts", messages=(say.user(), say.answer(), parts))
    emoji = {"role": "user", "content": f"{say.word('word')} naïve 東京 Ωμέγα 🤖👩‍🔬"}
    yield Shape(name="text beyond ASCII", messages=(say.user(), say.answer(), emoji))
    special = {"role": "user", "content": f"{say.word('word')} {_LOOKALIKES}"}
    yield Shape(name="text that looks like control tokens", messages=(say.user(), say.answer(), special))
    empty = {"role": "assistant", "content": ""}
    yield Shape(name="an empty assistant message", messages=(say.user(), empty, say.user()))


def _tool_shapes(say: _Words) -> Iterator[Shape]:
    one, two, three = say.calls(), say.calls(2), say.calls(content=True)
    yield _tools("a tool result", (say.user(), one, *say.results(one)))
    yield _tools("parallel tool results", (say.user(), two, *say.results(two)))
    yield _tools("text beside a tool call", (say.user(), three, *say.results(three)))
    ruled = say.calls()
    yield _tools("a tool result under a system prompt", (say.system(), say.user(), ruled, *say.results(ruled)))
    first, second = say.calls(), say.calls(content=True)
    chain = (say.user(), first, *say.results(first), second, *say.results(second), say.answer())
    yield _tools("a chain of tool calls", chain)
    yield _tools("a user turn after a chain of tool calls", (*chain, say.user()))
    first, second = say.calls(2), say.calls()
    rounds = (say.user(), first, *say.results(first), say.answer(), say.user(), second, *say.results(second))
    yield _tools("tool calls in two rounds", rounds)
    late = (say.user(), say.answer(), say.system())
    yield _tools("a late system message beside tools", late)
    call = say.calls()
    yield _tools("a hint from the system after a failed call", (say.user(), call, *say.results(call), say.system()))
    call, both = say.calls(), say.calls(2)
    yield _tools("tool results and a user turn", (say.user(), both, *say.results(both), say.user()))
    yield _tools("a tool result and a user turn", (say.user(), call, *say.results(call), say.user()))
    call = say.calls(as_string=False)
    yield _tools("arguments as an object", (say.user(), call, *say.results(call)))
    call = say.calls()
    yield _tools("a very long tool result", (say.user(), call, *say.results(call, " long" * 4000)))
    call = say.calls()
    yield _tools("a tool result in JSON", (say.user(), call, *say.results(call, ' {"a": [1, "b"]}\n')))


def _tools(name: str, messages: tuple[Message, ...]) -> Shape:
    return Shape(name=name, messages=messages, needs_tools=True)
