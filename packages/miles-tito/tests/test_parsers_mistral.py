"""`[TOOL_CALLS]` with an array, and with name, id and arguments."""

import pytest

from miles_tito import StreamParser
from miles_tito.parsers.formats import format_named


def parse(text, name="mistral"):
    return StreamParser(format_named(name)).parse(text)


def test_an_array_carries_ids():
    text = (
        '[TOOL_CALLS] [{"name": "a", "arguments": {"x": "[TOOL_CALLS]"}, "id": "abcdefgh1"}, '
        '{"name": "b", "arguments": {}}]'
    )
    one, two = parse(text)["tool_calls"]
    assert (one["id"], one["function"]) == ("abcdefgh1", {"name": "a", "arguments": '{"x": "[TOOL_CALLS]"}'})
    assert two["function"]["name"] == "b"
    assert len(two["id"]) == 9


def test_name_and_arguments_with_and_without_an_id():
    text = '[TOOL_CALLS]a[ARGS]{"x": 1}[TOOL_CALLS]b[CALL_ID]abcdefgh2[ARGS]{}[TOOL_CALLS]c{"y": 2}'
    found = parse(text)["tool_calls"]
    assert [(call["function"]["name"], call["function"]["arguments"]) for call in found] == [
        ("a", '{"x": 1}'),
        ("b", "{}"),
        ("c", '{"y": 2}'),
    ]
    assert found[1]["id"] == "abcdefgh2"


@pytest.mark.parametrize("body", ["a", "a[ARGS]", "a[ARGS]{", "[ARGS]{}", "a[CALL_ID]x", '[{"name": "a"'])
def test_a_broken_call_reaches_to_the_next_one(body):
    message = parse(f"[TOOL_CALLS]{body}[TOOL_CALLS]b[ARGS]{{}}")
    broken, good = message["tool_calls"]
    assert broken["raw"] == f"[TOOL_CALLS]{body}"
    assert broken["invalid"] is True
    assert good["function"]["name"] == "b"


def test_reasoning_in_its_own_marks():
    message = parse("[THINK]why[/THINK]so[TOOL_CALLS]a[ARGS]{}", "mistral+mistral_think")
    assert (message["reasoning_content"], message["content"]) == ("why", "so")
    assert len(message["tool_calls"]) == 1
