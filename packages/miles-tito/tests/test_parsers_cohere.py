"""Cohere: actions with their ids, a response between marks, and the older block of code."""

import pytest

from miles_tito import StreamParser
from miles_tito.parsers.formats import format_named


def parse(text, name="cohere+cohere_thinking"):
    return StreamParser(format_named(name)).parse(text)


ACTION = '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "a", "parameters": {"x": 1}}\n]<|END_ACTION|>'


def test_the_marks_around_a_response_are_no_part_of_it():
    message = parse("<|START_THINKING|>why<|END_THINKING|><|START_RESPONSE|>so<|END_RESPONSE|>")
    assert message == {"role": "assistant", "content": "so", "reasoning_content": "why"}


def test_an_action_carries_its_id():
    (found,) = parse(f"<|START_THINKING|>why<|END_THINKING|>{ACTION}")["tool_calls"]
    assert (found["id"], found["function"]) == ("0", {"name": "a", "arguments": '{"x": 1}'})


def test_a_number_as_id_is_its_text():
    (found,) = parse(ACTION.replace('"0"', "0"))["tool_calls"]
    assert found["id"] == "0"


@pytest.mark.parametrize("body", ["[]", '[{"tool_name": "a"', '[{"parameters": {}}]', '{"tool_name": "a", "x": 1}'])
def test_an_action_that_cannot_be_read_is_marked(body):
    raw = f"<|START_ACTION|>{body}<|END_ACTION|>"
    (found,) = parse(raw)["tool_calls"]
    assert found["raw"] == raw


def test_a_block_that_is_no_action_is_content():
    text = "See:\n```json\n[1]\n```"
    assert parse(text, "command_r") == {"role": "assistant", "content": text}
