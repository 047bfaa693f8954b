"""A turn as ids and as pieces: reasoning, stops, and what reaches the client when."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_core.errors import TokenError
from miles_tito import StreamParser, join_deltas
from miles_tito.parsers.formats import PLAIN, format_named
from miles_tito.render import ChatTemplate
from miles_tito.verify.vocabulary import default_vocabulary

HERMES = format_named("hermes+think")
VOCABULARY = default_vocabulary(
    ChatTemplate("<|im_end|><tool_call></tool_call><think></think><|tools_prefix|><|tools_suffix|><|call|><|message|>")
)
STOP = VOCABULARY.id_of("<|im_end|>")
CALL = '<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>'


def parse(text, **options):
    return StreamParser(HERMES, **options).parse(text)


def test_reasoning_content_and_calls_are_told_apart():
    message = parse(f"<think>\nhm\n</think>\n\nlet me see\n{CALL}\n{CALL}")
    assert message["reasoning_content"] == "hm"
    assert message["content"] == "let me see"
    assert len(message["tool_calls"]) == 2


def test_a_turn_that_the_prompt_opened_inside_reasoning_starts_there():
    expected = {"role": "assistant", "content": "yes", "reasoning_content": "hm"}
    assert parse("hm\n</think>\n\nyes", reasoning_open=True) == expected


def test_reasoning_that_never_closes_is_reasoning():
    assert parse("<think>\nand then\n") == {"role": "assistant", "content": "", "reasoning_content": "and then\n"}


@pytest.mark.parametrize("text", ["<think></think>\n\nyes", "\n<think>\n\n</think>\n\nyes", "</think>\n\nyes"])
def test_empty_reasoning_is_none(text):
    assert parse(text) == {"role": "assistant", "content": "yes"}


def test_a_think_mark_inside_content_is_content():
    text = "I wrote <think> once</think>"
    assert parse(text) == {"role": "assistant", "content": text}
    assert parse(f"<think>a</think>{text}")["content"] == text


def test_white_space_alone_is_content():
    assert parse(" \n\n") == {"role": "assistant", "content": " \n\n"}


def test_a_format_without_marks_keeps_everything_as_content():
    text = f"\n<think>x</think>{CALL}"
    assert StreamParser(PLAIN).parse(text) == {"role": "assistant", "content": text}


def test_ids_need_a_vocabulary():
    with pytest.raises(TypeError, match="without a vocabulary"):
        StreamParser(HERMES).feed([1])


def test_a_broken_character_before_the_stop_is_kept():
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


@pytest.mark.parametrize(
    ("name", "text", "stop"),
    [
        ("apertus", '<|tools_prefix|>[{"a": {}}]', "<|tools_suffix|>"),
        ("hermes", CALL.removesuffix("</tool_call>"), "</tool_call>"),
        ("harmony", " to=functions.a<|channel|>commentary json<|message|>{}", "<|call|>"),
    ],
)
def test_a_stop_that_is_the_closing_mark_closes_the_call(name, text, stop):
    number = VOCABULARY.id_of(stop)
    parser = StreamParser(format_named(name), decode=VOCABULARY.decode, stop_ids=[number, STOP])
    message = parser.parse([*VOCABULARY.encode(text)[0], number])
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["a"]
    assert message["content"] == ""


def test_a_stop_that_closes_nothing_is_nothing():
    number = VOCABULARY.id_of("</tool_call>")
    parser = StreamParser(HERMES, decode=VOCABULARY.decode, stop_ids=[number])
    assert parser.parse([*VOCABULARY.encode("so")[0], number]) == {"role": "assistant", "content": "so"}


def test_a_broken_call_that_a_closing_stop_ends_keeps_its_mark_in_the_raw_text():
    number = VOCABULARY.id_of("</tool_call>")
    parser = StreamParser(HERMES, decode=VOCABULARY.decode, stop_ids=[number])
    (found,) = parser.parse([*VOCABULARY.encode("<tool_call>{oops")[0], number])["tool_calls"]
    assert found["raw"] == "<tool_call>{oops</tool_call>"


def test_content_reaches_the_client_before_the_turn_ends():
    parser = StreamParser(HERMES)
    assert parser.feed("Hello wor") == [{"content": "Hello wor"}]
    assert parser.feed("ld <tool") == [{"content": "ld "}]
    assert parser.feed("box>") == [{"content": "<toolbox>"}]


def test_a_call_reaches_the_client_when_it_is_complete():
    parser = StreamParser(HERMES)
    assert parser.feed(CALL[:-1]) == []
    ((delta,),) = [found["tool_calls"] for found in parser.feed(">")]
    assert (delta["index"], delta["function"]["name"]) == (0, "a")
    assert parser.finish() == []


def test_deltas_join_in_order():
    deltas = [{"reasoning_content": "a"}, {"content": "b"}, {"tool_calls": [{"index": 0, "id": "x"}]}, {"content": "c"}]
    assert join_deltas(deltas) == {
        "role": "assistant",
        "content": "bc",
        "reasoning_content": "a",
        "tool_calls": [{"id": "x"}],
    }


MARKS = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    '{"name": "a", "arguments": {}}',
    "\n",
    " ",
    "x",
    "é",
    "<",
]


@given(
    text=st.lists(st.sampled_from(MARKS), max_size=14).map("".join),
    cuts=st.lists(st.integers(0, 200), max_size=8),
    is_open=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_deltas_of_any_cutting_join_to_the_whole_parse(text, cuts, is_open):
    whole = parse(text, reasoning_open=is_open)
    parser = StreamParser(HERMES, reasoning_open=is_open)
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    deltas = [d for a, b in pairwise(edges) for d in parser.feed(text[a:b])]
    assert join_deltas([*deltas, *parser.finish()]) == whole


@given(ids=st.lists(st.integers(0, VOCABULARY.size - 1), max_size=40), data=st.data())
@settings(max_examples=200, deadline=None)
def test_deltas_of_random_ids_join_to_the_whole_parse(ids, data):
    options = {"decode": VOCABULARY.decode, "stop_ids": [STOP, VOCABULARY.id_of("</tool_call>")]}
    parser = StreamParser(HERMES, **options)
    deltas, rest = [], list(ids)
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        deltas += parser.feed(rest[:size])
        rest = rest[size:]
    assert join_deltas([*deltas, *parser.finish()]) == StreamParser(HERMES, **options).parse(ids)


@pytest.mark.parametrize("ids", [[-1], [2**40], [1.5], ["a"], 5, None])
def test_ids_that_no_model_has_are_refused_in_a_sentence(ids):
    parser = StreamParser(HERMES, decode=VOCABULARY.decode)
    with pytest.raises(TokenError, match="expected token ids"):
        parser.feed(ids)


def test_ids_beyond_the_vocabulary_are_unreadable_text():
    assert StreamParser(HERMES, decode=VOCABULARY.decode).parse([2**31 - 1])["content"] == "\ufffd"


@pytest.mark.parametrize("tools", [[None], ["a"], [[1]]])
def test_schemas_that_are_no_objects_are_refused_in_a_sentence(tools):
    with pytest.raises(TokenError, match="expected the schema of a tool as an object"):
        StreamParser(HERMES, tools=tools)
