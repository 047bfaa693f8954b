"""A kept skeleton is trusted only as far as the render of the real messages confirms it."""

import pytest

from miles_tito import NotExtendable
from miles_tito.outline import Skeleton, outline_of
from miles_tito.sentinels import all_with_sentinels

USER = {"role": "user", "content": "hi"}


def call(number, name="look", arguments="{}"):
    return {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}


def turn(*calls, content=""):
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def answer(number, content="r"):
    return {"role": "tool", "tool_call_id": number, "name": "look", "content": content}


def test_texts_arguments_and_what_ids_say_are_no_part_of_the_outline():
    one = outline_of(turn(call("c1", arguments='{"a": 1}')), [answer("c1", "short")])
    assert one == outline_of(turn(call("d7")), [answer("d7", "another")])


@pytest.mark.parametrize(
    ("changed", "new"),
    [
        (turn(call("c1", name="find")), [answer("c1")]),
        (turn(call("c1"), content="text"), [answer("c1")]),
        (turn(call("c1"), call("c2")), [answer("c1")]),
        (turn(call("call_123")), [answer("call_123")]),
        (turn(call("c1")), [answer("c2")]),
        (turn(call("c1")), [answer("c1"), USER]),
        (turn(call("c1")), [{**answer("c1"), "name": "find"}]),
        ({**turn(call("c1")), "prefix": True}, [answer("c1")]),
    ],
)
def test_whatever_else_differs_is_another_outline(changed, new):
    assert outline_of(changed, new) != outline_of(turn(call("c1")), [answer("c1")])


def test_ids_in_another_order_are_another_outline():
    new = [answer("a1"), answer("b2")]
    assert outline_of(turn(call("a1"), call("b2")), new) != outline_of(turn(call("b2"), call("a1")), new)


@pytest.fixture
def skeleton():
    placed = all_with_sentinels([answer("c1"), USER], "new")
    first, second = (p.words[0] for p in placed)
    return Skeleton.of(f"<e>[c1]{first}</e> {second}<a>", "<e>", placed, ["c1", "c1"])


def test_a_skeleton_says_where_its_filled_form_starts(skeleton):
    assert skeleton.ends("xx<e>[c1]one</e> two<a>", ["one", "two"], ["c1", "c1"]) == 2


def test_ids_are_those_of_the_new_messages(skeleton):
    assert skeleton.ends("xx<e>[d9]one</e> two<a>", ["one", "two"], ["d9", "d9"]) == 2
    assert skeleton.ends("xx<e>[c1]one</e> two<a>", ["one", "two"], ["d9", "d9"]) is None


def test_each_content_may_be_trimmed_on_its_own(skeleton):
    assert skeleton.ends("<e>[c1]one</e>  two <a>", [" one\n", " two "], ["c1", "c1"]) == 0


@pytest.mark.parametrize("text", ["<e>[c1]one</e> two<a>!", "<e>[c1]One</e> two<a>", "[c1]one</e> two<a>", "", "<a>"])
def test_a_text_that_ends_otherwise_does_not_match(skeleton, text):
    assert skeleton.ends(text, ["one", "two"], ["c1", "c1"]) is None


def test_a_template_that_looks_at_a_text_is_answered_with_the_real_text(chat_for, encode):
    chat = chat_for("looks_at_the_text")
    transcript = chat.begin([USER])
    for content, opener in [("plain", "<|user|>"), ("URGENT now", "<|alarm|>"), ("plain again", "<|user|>")]:
        transcript = chat.append(transcript.sampled(encode(chat, "a<|end|>")), [{"role": "user", "content": content}])
        assert f"{opener}{content}" in chat.vocabulary.decode(transcript.ids)
        assert chat.verify(transcript).hard == 0


def test_a_refused_outline_is_refused_again(chat_for, encode):
    chat = chat_for("drops_late_system")
    done = chat.begin([USER]).sampled(encode(chat, "a<|end|>"))
    for _ in range(3):
        with pytest.raises(NotExtendable, match="drops the text"):
            chat.append(done, [{"role": "system", "content": "s"}])


def test_ids_that_a_template_prints_are_the_real_ones(chat_for, encode):
    chat = chat_for("prints_call_ids")
    transcript = chat.begin([USER])
    for number in ("call_aa1", "call_bb2", "x"):
        message = {"role": "assistant", "content": "", "tool_calls": [call(number)]}
        transcript = transcript.sampled(encode(chat, f"look{number}<|end|>"), message=message)
        transcript = chat.append(transcript, [{"role": "tool", "tool_call_id": number, "content": "r"}])
        assert f"<|tool|>{number}: r<|end|>" in chat.vocabulary.decode(transcript.ids)
    assert chat.verify(transcript).hard == 0
