"""One tokenizer for many threads, clocks and callers: each conversation is as if it were alone."""

import threading
from datetime import datetime, timedelta

import pytest

from miles_tito import ChatTokenizer, NotExtendable
from miles_tito.render import ChatTemplate
from miles_tito.verify.vocabulary import default_vocabulary

TOOLS = [{"type": "function", "function": {"name": "look", "description": "d", "parameters": {"type": "object"}}}]


def chat_of(source):
    template = ChatTemplate(source)
    vocabulary = default_vocabulary(template)
    return ChatTokenizer(template.with_special_tokens(vocabulary.special_tokens), vocabulary)


def converse(chat, number, turns=4):
    """Ids, messages and comparisons of a conversation of its own, every kind of append in it, refusals too."""
    transcript = chat.begin(
        [{"role": "user", "content": f"question {number} <|im_end|>"}], TOOLS, now=datetime(2026, 1, 1)
    )
    seen = []
    stop = list(chat.stop_token_ids[:1])
    for turn in range(turns):
        text = (
            f'<tool_call>\n{{"name": "look", "arguments": {{"n": {number}}}}}\n</tool_call>' if turn % 2 else f"a{turn}"
        )
        transcript = transcript.sampled([*chat.vocabulary.encode(text)[0], *stop])
        message = transcript.messages[-1]
        calls = message.get("tool_calls") or ()
        new = [{"role": "tool", "tool_call_id": call["id"], "content": f"r{number}"} for call in calls]
        new += [{"role": "user", "content": f"more {turn}"}] if not new or number % 2 else []
        try:
            chat.append(transcript, [{"role": "developer", "content": "d"}, {"role": "tool", "content": "t"}])
        except NotExtendable as error:
            seen.append(error.reason)
        transcript = chat.append(transcript, new)
        seen += [transcript.ids, message, chat.verify(transcript).counts]
    return seen


@pytest.mark.parametrize("source", ["small", "qwen3"])
def test_eight_threads_at_once_get_what_one_gets_alone(source, request, template_file):
    def fresh():
        if source == "qwen3":
            return ChatTokenizer.from_pretrained(request.getfixturevalue("tokenizers_folder") / "qwen3")
        return chat_of(template_file("chatml").read_text())

    alone, shared = fresh(), fresh()
    expected = [converse(alone, number) for number in range(8)]
    found, errors = {}, []
    ready = threading.Barrier(8)

    def work(number):
        try:
            ready.wait(30)
            found[number] = [converse(shared, number) for _ in range(3)]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not errors
    assert [found[number] for number in range(8)] == [[conversation] * 3 for conversation in expected]
    assert shared.profile.proofs == alone.profile.proofs


CLOCKS = (
    "{%- for m in messages %}{{ '<|' + m.role + '|>' + strftime_now('%Y-%m-%d %H:%M:%S ') + m.content + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' + strftime_now('%Y-%m-%d %H:%M:%S ') }}{% endif %}"
)


def test_a_conversation_that_runs_past_midnight_keeps_its_day(monkeypatch):
    chat = chat_of(CLOCKS)
    moments = iter(datetime(2026, 12, 31, 23, 59, 58) + timedelta(seconds=n) for n in range(100))

    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return next(moments)

    monkeypatch.setattr("miles_tito.tokenizer.datetime", Clock)
    user = {"role": "user", "content": "u"}
    early, late = chat.begin([user]), [chat.begin([user]) for _ in range(5)][-1]
    stop = list(chat.stop_token_ids[:1])
    for _ in range(3):
        early = chat.append(early.sampled([*chat.vocabulary.encode("a")[0], *stop]), [user])
        late = chat.append(late.sampled([*chat.vocabulary.encode("a")[0], *stop]), [user])
        assert chat.verify(early).hard == chat.verify(late).hard == 0
    texts = [chat.vocabulary.decode(transcript.ids) for transcript in (early, late)]
    assert texts[0].count("2026-12-31 23:59:58") == 8
    assert texts[1].count("2027-01-01 00:00:03") == 8
    assert "2027" not in texts[0]
    assert "2026" not in texts[1]


class Frozen(dict):
    """A dictionary that refuses every change."""

    def _refuse(self, *arguments, **keywords):
        raise AssertionError("a caller's message was changed")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse


class FrozenList(list):
    """A list that refuses every change."""

    def _refuse(self, *arguments, **keywords):
        raise AssertionError("a caller's list was changed")

    __setitem__ = __delitem__ = __iadd__ = __imul__ = append = clear = extend = insert = pop = remove = _refuse
    reverse = sort = _refuse


def frozen(value):
    if isinstance(value, dict):
        return Frozen({key: frozen(item) for key, item in value.items()})
    if isinstance(value, list):
        return FrozenList(frozen(item) for item in value)
    return value


@pytest.mark.parametrize("name", ["chatml", "moves_tools", "numbers_calls", "arguments_as_string", "strips_reasoning"])
def test_nothing_a_caller_hands_over_is_changed(chat_for, name):
    chat = chat_for(name)
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": [1, {"b": null}]}'}}
    start = frozen([{"role": "user", "content": [{"type": "text", "text": "u"}]}])
    turn = frozen({"role": "assistant", "content": None, "reasoning_content": "r", "tool_calls": [call]})
    new = frozen([{"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "<|im_end|>"}]}])
    done = chat.begin(start, frozen(TOOLS)).sampled(
        [*chat.vocabulary.encode("x")[0], *chat.stop_token_ids[:1]], message=turn
    )
    transcript = chat.append(done, new)
    chat.verify(transcript)
    assert transcript.messages[1]["tool_calls"][0]["function"]["arguments"] == call["function"]["arguments"]
    assert transcript.messages == (*start, turn, *new)
