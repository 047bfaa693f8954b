"""Histories to prove suffixes under: conversations grown append by append, as far as the template lets them."""

from collections.abc import Iterator, Sequence

from miles_tito.derive import Deriver, History, Message
from miles_tito.errors import NotExtendable
from miles_tito.profile import CALL, EPOCH


def _conversations() -> Iterator[list[Message]]:
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


def stages(deriver: Deriver, tools: Sequence[Message]) -> list[History]:
    """Every stage of every history up to which the template lets it grow, append by append."""
    found: dict[str, History] = {}
    for messages in _conversations():
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


_LONG = 100
"""Turns of the long history: 201 messages, so that a template which forgets the oldest is noticed."""


def long_stage(deriver: Deriver, tools: Sequence[Message]) -> tuple[History | None, bool]:
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


def repeated(deriver: Deriver, turn: Message, new: Sequence[Message], tools: Sequence[Message]) -> list[History]:
    """The history in which the very same turn and messages came before, if it can be grown: nothing is written once."""
    stage = _grown(deriver, None, [{"role": "user", "content": "first"}], tools)
    again = stage and _grown(deriver, stage, [turn, *new], tools)
    return [again] if again else []


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
