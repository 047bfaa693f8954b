"""Calls as Python writes them: literals only, names that Python would refuse, and lists that are no calls."""

import json

import pytest

from miles_tito import StreamParser
from miles_tito.parsers.formats import format_named

from .written_turns import TOOLS


def parse(text, name="pythonic", tools=()):
    return StreamParser(format_named(name), tools=tools).parse(text)


def arguments_of(message):
    (found,) = message["tool_calls"]
    assert not found.get("invalid"), found
    return json.loads(found["function"]["arguments"])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-2.5", -2.5),
        ("'a'", "a"),
        ('"a\\n\\"b\\""', 'a\n"b"'),
        ("'é, )]}'", "é, )]}"),
        ("True", True),
        ("None", None),
        ("true", True),
        ("null", None),
        ("[1, (2, 'x')]", [1, [2, "x"]]),
        ("{'a': {'b': []}}", {"a": {"b": []}}),
        ("'a' 'b'", "ab"),
    ],
)
def test_a_literal_is_its_value(text, value):
    assert arguments_of(parse(f"[f(x={text})]")) == {"x": value}


@pytest.mark.parametrize(
    "text",
    [
        "open('x')",
        "__import__('os')",
        "a",
        "1 + 1",
        "1j",
        "b'x'",
        "f'{x}'",
        "{1: 2}",
        "{'a': 1, 'a': 2}",
        "lambda: 0",
        "[x for x in 'ab']",
        "1e999",
        "9" * 5000,
        "(" * 500 + ")" * 500,
        "",
        "*x",
    ],
)
def test_anything_but_a_literal_marks_the_call(text):
    raw = f"[f(x={text})]"
    (found,) = parse(raw)["tool_calls"]
    assert found["invalid"] is True
    assert found["raw"] == raw


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("[get-weather(from='a', in='b')]", [("get-weather", {"from": "a", "in": "b"})]),
        ("[a.b(x=1,), c(),]", [("a.b", {"x": 1}), ("c", {})]),
        ("\n[ f ( ) ]", [("f", {})]),
        ("[f(x = 1, y= 2 )]", [("f", {"x": 1, "y": 2})]),
    ],
)
def test_names_are_read_as_they_stand(text, calls):
    found = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in parse(text)["tool_calls"]]
    assert found == calls


@pytest.mark.parametrize("text", ["[1, 2]", "[link](url)", "[]", "[", "[Note (x)] so", "So [f(x=1)]", "[f]"])
def test_a_list_that_is_no_call_is_content(text):
    assert parse(text) == {"role": "assistant", "content": text}


@pytest.mark.parametrize(
    "text", ["[f(1)]", "[f(x=1", "[f(x=1)", "[f(x=1, x=2)]", "[f(x='a)]", "[f(x=1) g()]", "[f(x=1}]"]
)
def test_what_began_as_a_call_is_marked(text):
    (found,) = parse(text)["tool_calls"]
    assert found["raw"] == text


def test_the_schema_decides_about_quoted_values():
    text = '[look_up(days="3", warm="True", more="{\'a\': [1]}", code="42")]'
    assert arguments_of(parse(text, tools=TOOLS)) == {"days": 3, "warm": True, "more": {"a": [1]}, "code": "42"}
    assert arguments_of(parse(text))["days"] == "3"


def test_marks_let_calls_stand_anywhere():
    message = parse("So <|tool_call_start|>[f(x=1)]<|tool_call_end|>done", "lfm2")
    assert arguments_of(message) == {"x": 1}
    assert message["content"] == "So done"
