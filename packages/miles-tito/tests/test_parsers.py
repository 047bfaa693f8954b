"""Sampled ids and text to messages, whole and streamed."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_tito import StreamParser, join_deltas
from miles_tito.parsers.formats import PLAIN, format_named
from miles_tito.render import ChatTemplate
from miles_tito.verify.vocabulary import default_vocabulary

HERMES = format_named("hermes+think")
VOCABULARY = default_vocabulary(ChatTemplate("<|im_end|><tool_call></tool_call><think></think>"))
STOP = VOCABULARY.id_of("<|im_end|>")


def parse(text, **options):
    return StreamParser(HERMES, **options).parse(text)


def call(name, arguments):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


def test_reasoning_content_and_calls_are_told_apart():
    message = parse(f"<think>\nhm\n</think>\n\nlet me see\n{call('a', {'x': 1})}\n{call('b', {})}")
    assert message["reasoning_content"] == "hm"
    assert message["content"] == "let me see"
    assert [c["function"] for c in message["tool_calls"]] == [
        {"name": "a", "arguments": '{"x": 1}'},
        {"name": "b", "arguments": "{}"},
    ]
    ids = [c["id"] for c in message["tool_calls"]]
    assert len(set(ids)) == 2
    assert all(len(i) == 9 and i.isalnum() for i in ids)


def test_a_turn_that_the_prompt_opened_inside_reasoning_starts_there():
    assert parse("hm\n</think>\n\nyes", reasoning_open=True) == {
        "role": "assistant",
        "content": "yes",
        "reasoning_content": "hm",
    }


def test_reasoning_that_never_closes_is_reasoning():
    assert parse("<think>\nand then")["reasoning_content"] == "and then"


def test_a_think_mark_inside_content_is_content():
    assert parse("I wrote <think> once</think>") == {"role": "assistant", "content": "I wrote <think> once</think>"}


def test_text_after_a_call_is_kept():
    message = parse(f"{call('a', {})}\nand more")
    assert message["content"] == "and more"
    assert len(message["tool_calls"]) == 1


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "a", "arguments": {',
        "[1]",
        '{"arguments": {}}',
        '{"name": "a", "arguments": [1]}',
        '{"name": "a", "arguments": "{"}',
        "__import__('os')",
    ],
)
def test_a_call_that_cannot_be_read_is_marked_and_keeps_its_text(body):
    raw = f"<tool_call>{body}</tool_call>"
    message = parse(f"so {raw}")
    (found,) = message["tool_calls"]
    assert found["invalid"] is True
    assert found["raw"] == raw
    assert found["function"] == {"name": "invalid_tool_call", "arguments": body}
    assert found["error"].startswith("expected")


def test_an_unfinished_call_is_marked():
    (found,) = parse('<tool_call>{"name": "a"')["tool_calls"]
    assert found["invalid"] is True
    assert found["raw"] == '<tool_call>{"name": "a"'


def test_an_invalid_call_goes_back_into_the_render_as_the_text_it_was(chat_for, encode):
    chat = chat_for("chatml")
    raw = "<tool_call>{oops</tool_call>"
    transcript = chat.begin([{"role": "user", "content": "u"}]).sampled(encode(chat, f"{raw}<|im_end|>"))
    transcript = chat.append(transcript, [{"role": "user", "content": "that was no JSON"}])
    report = chat.verify(transcript)
    assert (report.hard, report.soft) == (0, 0)


def test_arguments_given_as_a_json_string_become_the_object():
    (found,) = parse('<tool_call>{"name": "a", "arguments": "{\\"x\\": 1}"}</tool_call>')["tool_calls"]
    assert json.loads(found["function"]["arguments"]) == {"x": 1}


def test_a_format_without_marks_keeps_everything_as_content():
    text = f"<think>x</think>{call('a', {})}"
    assert StreamParser(PLAIN).parse(text) == {"role": "assistant", "content": text}


def test_half_a_character_waits_for_its_other_half():
    parser = StreamParser(HERMES, decode=VOCABULARY.decode, stop_ids=[STOP])
    first, second = VOCABULARY.encode("é")[0]
    assert parser.feed([first]) == []
    assert parser.feed([second]) == [{"content": "é"}]
    assert parser.feed([first, STOP]) == []
    assert parser.finish() == [{"content": "\ufffd"}]


def test_only_the_final_stop_is_left_out():
    parser = StreamParser(HERMES, decode=VOCABULARY.decode, stop_ids=[STOP])
    ids = [*VOCABULARY.encode("a")[0], STOP, *VOCABULARY.encode("b")[0], STOP]
    assert parser.parse(ids)["content"] == "a<|im_end|>b"


def test_content_reaches_the_client_before_the_turn_ends():
    parser = StreamParser(HERMES)
    assert parser.feed("Hello wor") == [{"content": "Hello wor"}]
    assert parser.feed("ld <tool") == [{"content": "ld "}]
    assert parser.feed("box>") == [{"content": "<toolbox>"}]


CALL = '{"name": "a", "arguments": {}}'
MARKS = ["<think>", "</think>", "<tool_call>", "</tool_call>", CALL, "\n", " ", "x", "é", "<"]
PIECES = st.lists(st.sampled_from(MARKS), max_size=14).map("".join)


@given(text=PIECES, cuts=st.lists(st.integers(0, 200), max_size=8), is_open=st.booleans())
@settings(max_examples=300, deadline=None)
def test_deltas_of_any_cutting_join_to_the_whole_parse(text, cuts, is_open):
    whole = StreamParser(HERMES, reasoning_open=is_open).parse(text)
    parser = StreamParser(HERMES, reasoning_open=is_open)
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    deltas = [d for a, b in pairwise(edges) for d in parser.feed(text[a:b])]
    assert join_deltas([*deltas, *parser.finish()]) == whole


@given(ids=st.lists(st.integers(0, VOCABULARY.size - 1), max_size=40), data=st.data())
@settings(max_examples=200, deadline=None)
def test_deltas_of_random_ids_join_to_the_whole_parse(ids, data):
    options = {"decode": VOCABULARY.decode, "stop_ids": [STOP]}
    parser = StreamParser(HERMES, **options)
    deltas, rest = [], list(ids)
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        deltas += parser.feed(rest[:size])
        rest = rest[size:]
    assert join_deltas([*deltas, *parser.finish()]) == StreamParser(HERMES, **options).parse(ids)


@given(text=PIECES)
@settings(max_examples=200, deadline=None)
def test_no_letter_of_a_turn_is_lost(text):
    message = parse(text)
    kept = message["content"] + message.get("reasoning_content", "")
    kept += "".join(c.get("raw", c["function"]["name"]) for c in message.get("tool_calls") or ())
    assert kept.count("x") + kept.count("é") == text.count("x") + text.count("é")
