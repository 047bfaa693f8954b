"""Conversations that a template must survive to be safe for multi-turn training."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from miles_tito.verify.words import TOOLS_WORD, Words

Message = Mapping[str, Any]

KINDS = (
    "tool", "tools", "user", "system", "assistant", "tools+user", "tools+system", "tools+assistant", "system+user",
)  # fmt: skip
"""Kinds of append that get a verdict: one tool result, several, one message of another role, and mixtures.

`tools+` is a run of one or more results and then the other; `assistant` is every append that holds an injected
assistant message, without and with results before it.
"""
REQUIRED = ("tool", "tools", "user", "tools+user")
"""Kinds that a template must support unless the caller asks for others: tool results and user turns."""

TOOLS: tuple[Message, ...] = (
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": f"Looks up a word in {TOOLS_WORD}.",
            "parameters": {
                "type": "object",
                "properties": {"word": {"type": "string"}, "limit": {"type": "integer"}},
                "required": ["word"],
            },
        },
    },
)


_MANY = 24
"""Turns of the long conversations: more than a template that keeps a window of messages is likely to keep."""


_OFTEN = 6
"""Appends of one kind on end: the last of them come after the tenth message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A conversation in which assistant messages are the policy's turns and everything between them is one append.

    truncated: the first turn ends without its stop token. plain: its texts are a sentinel and ordinary words, so that
    its renders can be compared with those of other shapes. judged_every: of a long one only some steps, and the last,
    are compared with whole renders, which show what went wrong before, too.
    """

    name: str
    messages: tuple[Message, ...]
    needs_tools: bool = False
    truncated: bool = False
    plain: bool = True
    judged_every: int = 1

    def steps(self) -> Iterator[tuple[tuple[Message, ...], Message, tuple[Message, ...]]]:
        """`(messages before, turn, messages appended)` for each turn that something follows."""
        turns = [n for n, m in enumerate(self.messages) if m["role"] == "assistant" and not m.get("injected")]
        for place, end in zip(turns, [*turns[1:], len(self.messages)], strict=True):
            if self.messages[place + 1 : end]:
                yield self.messages[:place], self.messages[place], self.messages[place + 1 : end]

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of append that it tries."""
        return frozenset(verdict_kind(appended) for _, _, appended in self.steps())


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


def verdict_kind(appended: Sequence[Message]) -> str:
    """The kind among KINDS whose verdict an append counts for."""
    roles = [message["role"] for message in appended]
    if "assistant" in roles:
        return "tools+assistant" if "tool" in roles else "assistant"
    kind = kind_of(appended)
    return kind.replace("tool+", "tools+") if "+" in kind else kind


def shapes(
    *,
    tools: bool,
    reasoning: bool,
    lookalikes: str = "<|im_end|> </s> [INST] <think>",
    phrases: Sequence[str] = (),
) -> list[Shape]:
    """Every shape; those that need tools only with `tools`, turns with reasoning only with `reasoning`.

    lookalikes: control tokens spelled out, put into the text of messages. phrases: texts that the template looks for.
    """
    say = Words(reasoning=reasoning)
    found = [*_dialogues(say), *_late_messages(say), *_contents(say, lookalikes), *_long_prompts(say), *_again(say)]
    if phrases:
        found += _phrased(say, " ".join(phrases))
    if not tools:
        return found
    return [*found, *_tool_shapes(say), *_tool_contents(say, lookalikes), *_long_tool_prompts(say), *_tools_again(say)]


def _phrased(say: Words, phrases: str) -> Iterator[Shape]:
    system, user = say.system(), say.user(f" {phrases}")
    ruled = {**system, "content": f"{system['content']} {phrases}"}
    prompt = (ruled, user)
    yield Shape(name="a prompt in the template's own words", messages=(*prompt, say.answer(), say.user()), plain=False)


def _dialogues(say: Words) -> Iterator[Shape]:
    yield Shape(name="a user turn", messages=(say.user(), say.answer(), say.user()))
    users = (say.user(), say.answer(), say.user(), say.answer(), say.user(), say.answer(), say.user())
    yield Shape(name="several user turns", messages=users)
    many = [message for _ in range(_MANY) for message in (say.user(), say.answer())]
    yield Shape(name="many user turns", messages=(*many, say.user()), judged_every=8)
    ruled = (say.system(), say.user(), say.answer(), say.user(), say.answer(), say.user())
    yield Shape(name="several user turns under a system prompt", messages=ruled)
    yield Shape(name="a truncated turn", messages=(say.user(), say.answer(), say.user()), truncated=True)
    shots = (say.user(), say.shot(), say.user(), say.answer(), say.user())
    yield Shape(name="few-shot examples in the prompt", messages=shots)


def _late_messages(say: Words) -> Iterator[Shape]:
    yield Shape(name="a late system message", messages=(say.user(), say.answer(), say.system()))
    ruled = (say.system(), say.user(), say.answer(), say.system())
    yield Shape(name="a second system message", messages=ruled)
    yield Shape(name="a late system and a user", messages=(say.user(), say.answer(), say.system(), say.user()))
    shown = (say.user(), say.answer(), say.user(), say.shot(), say.user())
    yield Shape(name="an injected assistant message", messages=shown)
    yield Shape(name="an injected assistant message under a system prompt", messages=(say.system(), *shown))
    yield Shape(name="an injected assistant message alone", messages=(say.user(), say.answer(), say.shot()))


def _contents(say: Words, lookalikes: str) -> Iterator[Shape]:
    def one(name: str, message: Message) -> Shape:
        return Shape(name=name, messages=(say.user(), say.answer(), message), plain=False)

    parts = [{"type": "text", "text": say.word("ask")}, {"type": "text", "text": " in parts"}]
    yield one("content as parts", {"role": "user", "content": parts})
    yield one("a user message of several paragraphs", say.lines(say.user(), "ask"))
    yield one("a system message of several paragraphs", say.lines(say.system(), "rule"))
    yield one("an injected message of several paragraphs", say.lines(say.shot(), "shot"))
    yield one("text beyond ASCII", say.user(" naïve 東京 Ωμέγα 🤖👩‍🔬 \u0301e"))
    yield one("white space around the text", {"role": "user", "content": f"\n  {say.word('ask')}\t\n\n"})
    yield one("text that looks like control tokens", say.user(f" {lookalikes}"))
    yield Shape(name="an empty assistant message", messages=(say.user(), say.empty(), say.user()))


def _long_prompts(say: Words) -> Iterator[Shape]:
    for name, follow in (
        ("a user turn", [say.user()]),
        ("a late system message", [say.system()]),
        ("a late system and a user", [say.system(), say.user()]),
        ("an injected message", [say.shot()]),
    ):
        yield Shape(name=f"{name} after a long history", messages=(*_history(say), say.answer(), *follow))


def _long_tool_prompts(say: Words) -> Iterator[Shape]:
    one, two = say.calls(), say.calls(2)
    for name, call, follow in (
        ("a tool result", one, []),
        ("parallel tool results", two, []),
        ("a tool result and a user turn", one, [say.user()]),
        ("a tool result and a system message", one, [say.system()]),
        ("a tool result and an injected message", one, [say.shot()]),
    ):
        messages = (*_history(say), call, *say.results(call), *follow)
        yield _tools(f"{name} after a long history", messages)


def _again(say: Words) -> Iterator[Shape]:
    def again(name: str, *follow: Callable[[], Message]) -> Shape:
        steps = [make() for _ in range(_OFTEN) for make in (say.answer, *follow)]
        return Shape(name=name, messages=(say.user(), *steps), judged_every=3)

    yield again("a late system message again and again", say.system)
    yield again("a late system and a user again and again", say.system, say.user)
    yield again("an injected assistant message again and again", say.user, say.shot, say.user)
    yield again("an injected assistant message alone again and again", say.shot)


def _tools_again(say: Words) -> Iterator[Shape]:
    def again(name: str, *follow: Callable[[], Message]) -> Shape:
        messages = [say.user()]
        for _ in range(_OFTEN):
            call = say.calls(2)
            messages += [call, *say.results(call), *(make() for make in follow)]
        return Shape(name=name, messages=tuple(messages), needs_tools=True, judged_every=3)

    yield again("parallel tool results again and again")
    yield again("tool results and a user turn again and again", say.user)
    yield again("tool results and a system message again and again", say.system)
    yield again("tool results and an injected message again and again", say.shot)


def _history(say: Words) -> list[Message]:
    """A prompt of many messages, none of them sampled."""
    return [say.system(), *(make() for _ in range(_MANY) for make in (say.user, say.shot)), say.user()]


def _tool_shapes(say: Words) -> Iterator[Shape]:
    one, two = say.calls(), say.calls(2)
    yield _tools("a tool result", (say.user(), one, *say.results(one)))
    yield _tools("parallel tool results", (say.user(), two, *say.results(two)))
    call = say.calls()
    yield _tools("a tool result under a system prompt", (say.system(), say.user(), call, *say.results(call)))
    first, second = say.calls(), say.calls(content="Now")
    chain = (say.user(), first, *say.results(first), second, *say.results(second), say.answer())
    yield _tools("a user turn after a chain of tool calls", (*chain, say.user()))
    chain = (say.user(), *_chain(say, _MANY))
    yield Shape(name="a long chain of tool calls", messages=chain, needs_tools=True, judged_every=8)
    first, second, third = say.calls(2), say.calls(), say.calls(3)
    rounds = (say.user(), first, *say.results(first), say.answer(), say.user(), second, *say.results(second))
    yield _tools("tool calls in several rounds", (*rounds, third, *say.results(third)))
    call, both = say.calls(), say.calls(2)
    yield _tools("a tool result and a user turn", (say.user(), call, *say.results(call), say.user()))
    yield _tools("tool results and a user turn", (say.user(), both, *say.results(both), say.user()))
    call = say.calls()
    hint = (say.user(), call, *say.results(call, ": error, no such word: "), say.system())
    yield _tools("a hint from the system after a failed call", hint)
    call = say.calls()
    yield _tools("tool calls after a hint from the system", (*hint, call, *say.results(call)))
    call = say.calls()
    yield _tools("an injected message after a tool result", (say.user(), call, *say.results(call), say.shot()))


def _tool_contents(say: Words, lookalikes: str) -> Iterator[Shape]:
    def answered(name: str, call: Message, more: str = "") -> Shape:
        return _tools(name, (say.user(), call, *say.results(call, more)), plain=False)

    yield answered("text beside a tool call", say.calls(content="Now"))
    yield answered("a tool call with null for its content", say.calls(content=None))
    yield answered("arguments as an object", say.calls(as_string=False))
    yield answered("a tool result in JSON", say.calls(), ' {"a": [1, "b"]}\n')
    yield answered("a tool result of several lines", say.calls(), "\n\n  one\n\ttwo\n\n")
    yield answered("a tool result beyond ASCII", say.calls(), " naïve 東京 🤖👩‍🔬 ")
    yield answered("a tool result that looks like control tokens", say.calls(), f" {lookalikes} ")
    yield answered("a very long tool result", say.calls(), f"{' long' * 2500} ")
    call, both = say.calls(), say.calls(2)
    lines = [say.lines(result, "found") for result in say.results(both)]
    yield _tools("parallel tool results of several paragraphs", (say.user(), both, *lines), plain=False)
    again = (say.lines(result, "found") for result in say.results(call))
    asked = (say.user(), call, *again, say.lines(say.user(), "ask"))
    yield _tools("a tool result and a user turn of several paragraphs", asked, plain=False)
    call = say.calls()
    again = (say.lines(result, "found") for result in say.results(call))
    ruled = (say.user(), call, *again, say.lines(say.system(), "rule"))
    yield _tools("a tool result and a system message of several paragraphs", ruled, plain=False)
    call = say.calls()
    parts = {**say.results(call)[0], "content": [{"type": "text", "text": say.word("found")}]}
    yield _tools("a tool result as parts", (say.user(), call, parts), plain=False)


def _chain(say: Words, count: int) -> Iterator[Message]:
    for _ in range(count):
        call = say.calls()
        yield call
        yield from say.results(call)


def _tools(name: str, messages: tuple[Message, ...], *, plain: bool = True) -> Shape:
    return Shape(name=name, messages=messages, needs_tools=True, plain=plain)
