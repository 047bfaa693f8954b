"""JSON that is the whole content: what is a call and what only looks like one."""

import pytest

from miles_tito import StreamParser
from miles_tito.parsers.formats import format_named


def parse(text, name="llama3_json"):
    return StreamParser(format_named(name)).parse(text)


CALL = '{"name": "a", "parameters": {"x": 1}}'


@pytest.mark.parametrize(
    "text", [CALL, f"\n {CALL}\n", f"<|python_tag|>{CALL}", CALL.replace("parameters", "arguments")]
)
def test_a_call_opens_the_content_with_or_without_its_mark(text):
    message = parse(text)
    assert [call["function"] for call in message["tool_calls"]] == [{"name": "a", "arguments": '{"x": 1}'}]
    assert message["content"] == ""


@pytest.mark.parametrize("mark", ["", "<|python_tag|>"])
def test_semicolons_part_calls(mark):
    message = parse(f"{mark}{CALL}; {CALL};{CALL}")
    assert len(message["tool_calls"]) == 3
    assert message["content"] == ""


@pytest.mark.parametrize(
    "text",
    [
        '{"answer": 3}',
        '  {"answer": 3} as asked',
        '{"name": "Ada"}',
        '{"name": "Ada", "parameters": {}, "age": 3}',
        "{not JSON at all",
        "{",
        f"See {CALL}",
        "[1, 2]",
    ],
)
def test_json_that_is_no_call_is_content(text):
    assert parse(text) == {"role": "assistant", "content": text}


@pytest.mark.parametrize(
    "text",
    ['{"name": "a", "parameters": {"x": ', '{ "name": "a", "parameters": [1]}', '{"name": "a", "parameters": {},}'],
)
def test_what_began_as_a_call_is_marked(text):
    (found,) = parse(text)["tool_calls"]
    assert found["invalid"] is True
    assert found["raw"] == text


def test_code_after_the_mark_is_a_marked_call():
    (found,) = parse('<|python_tag|>search.call(query="x")')["tool_calls"]
    assert found["raw"] == '<|python_tag|>search.call(query="x")'


def test_text_after_a_call_is_content():
    message = parse(f"{CALL}\nThat was it.")
    assert message["content"] == "That was it."
    assert len(message["tool_calls"]) == 1
