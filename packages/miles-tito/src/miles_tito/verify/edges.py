"""Conversations at the edges of what is usual: very long, empty, repeated, many, and in the template's own words."""

from collections.abc import Iterator, Sequence

from miles_core.messages import ROLES
from miles_tito.verify.shapes import Message, Shape
from miles_tito.verify.words import Words

_LENGTHS = (3_000, 20_000)
"""Characters of long texts: beyond where templates that cut texts are likely to cut them."""
_PAIRS = 100
"""User messages, each with its answer, of a very long prompt."""
_NAMES, _CONSTANT = 6, 200
"""Tools named at most after what a template looks for, and characters of a constant that a message says at most."""


def edges(say: Words, *, tools: bool, constants: Sequence[str], phrases: Sequence[str]) -> list[Shape]:
    """The shapes, of which one choice of reasoning and of tools is enough.

    constants: text constants of the template. phrases: those among them that it looks for.
    """
    spoken = " ".join(text for text in constants if len(text) <= _CONSTANT)
    found = [*_dialogues(say, spoken)]
    if tools:
        found += [*_results(say, spoken), *_named(say, phrases)]
    return found


def _dialogues(say: Words, spoken: str) -> Iterator[Shape]:
    def dialogue(name: str, *messages: Message) -> Shape:
        return Shape(name=name, messages=(say.user(), *messages), plain=False)

    long = [say.long(say.user(), "ask", length) for length in _LENGTHS]
    yield dialogue("very long user turns", say.answer(), long[0], say.answer(), long[1])
    same = {"role": "user", "content": "Once more."}
    yield dialogue("user turns that say the same", say.answer(), same, say.answer(), same)
    yield dialogue("a user turn in the template's own words", say.answer(), say.user(f" {spoken} "))
    yield dialogue("a user turn after two hundred messages", *_past(say), say.answer(), say.user())


def _results(say: Words, spoken: str) -> Iterator[Shape]:
    def chain(name: str, *messages: Message) -> Shape:
        return Shape(name=name, messages=(say.user(), *messages), needs_tools=True, plain=False)

    def answered(text: str) -> tuple[Message, Message]:
        call = say.calls()
        return call, {**say.results(call)[0], "content": text}

    call = say.calls()
    yield chain("a tool result of twenty thousand characters", call, say.long(say.results(call)[0], "found", 20_000))
    yield chain("an empty tool result", *answered(""), say.answer(), say.user())
    yield chain("tool results that say the same", *answered("ok"), *answered("ok"))
    four, six = say.calls(4), say.calls(6)
    yield chain("four and six parallel tool results", four, *say.results(four), six, *say.results(six))
    call = say.calls()
    yield chain("a tool result in the template's own words", call, *say.results(call, f" {spoken} "))
    call = say.calls()
    yield chain("a tool result after two hundred messages", *_past(say), call, *say.results(call))


def _named(say: Words, phrases: Sequence[str]) -> Iterator[Shape]:
    names = [text for text in phrases if text.isidentifier() and text not in ROLES][:_NAMES]
    chain = [say.user()]
    for name in names:
        call = say.calls(name=name)
        chain += [call, *say.results(call)]
    if names:
        name = "tools named in the template's own words"
        yield Shape(name=name, messages=tuple(chain), needs_tools=True, plain=False)


def _past(say: Words) -> list[Message]:
    """Messages of a prompt that was not sampled, an answer first."""
    return [say.shot(), *(make() for _ in range(_PAIRS) for make in (say.user, say.shot)), say.user()]
