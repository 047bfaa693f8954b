"""`<function=..><parameter=..>`: types, padding, and what models forget."""

import json

import pytest

from miles_tito import StreamParser
from miles_tito.parsers.formats import format_named

from .written_turns import TOOLS


def parse(text, name="qwen3_coder", tools=TOOLS):
    return StreamParser(format_named(name), tools=tools).parse(text)


def call(*rows, name="look_up"):
    return f"<tool_call>\n<function={name}>\n{''.join(rows)}</function>\n</tool_call>"


def row(key, value):
    return f"<parameter={key}>\n{value}\n</parameter>\n"


def arguments_of(message):
    (found,) = message["tool_calls"]
    assert not found.get("invalid"), found
    return json.loads(found["function"]["arguments"])


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("code", "42", "42"),
        ("code", "true", "true"),
        ("code", "", ""),
        ("code", "\n  a\n", "\n  a\n"),
        ("code", "a</tool_response>b <function>", "a</tool_response>b <function>"),
        ("code", "a </function>\n</tool_call> b <tool_call>", "a </function>\n</tool_call> b <tool_call>"),
        ("days", "42", 42),
        ("days", " 42 ", 42),
        ("days", "soon", "soon"),
        ("warm", "True", True),
        ("warm", "false", False),
        ("warm", "yes", "yes"),
        ("more", '{"a": {"b": [1, null]}}', {"a": {"b": [1, None]}}),
        ("more", "{'a': True, 'b': None}", {"a": True, "b": None}),
        ("tags", "[1, 'x']", [1, "x"]),
        ("tags", "__import__('os')", "__import__('os')"),
        ("tags", '{"a": 1}', '{"a": 1}'),
    ],
)
def test_a_value_has_the_type_of_its_schema(key, text, value):
    assert arguments_of(parse(call(row(key, text)))) == {key: value}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", 42),
        ("042", "042"),
        ("1e3", "1e3"),
        ("2.5", 2.5),
        ("true", True),
        ("True", "True"),
        ("null", None),
        ('"x"', '"x"'),
        ('{"a": 1}', {"a": 1}),
        ('{"a":1}', '{"a":1}'),
        ("[1, 2]", [1, 2]),
        ("a b", "a b"),
    ],
)
def test_without_a_schema_a_value_is_json_where_it_would_be_written_the_same(text, value):
    assert arguments_of(parse(call(row("x", text)), tools=())) == {"x": value}
    assert arguments_of(parse(call(row("unknown", text)))) == {"unknown": value}


def test_one_newline_on_each_side_of_a_value_is_no_part_of_it():
    assert arguments_of(parse(call("<parameter=code>a</parameter>", "<parameter=city>\n\na\n\n</parameter>"))) == {
        "code": "a",
        "city": "\na\n",
    }


def test_seed_keeps_the_newlines_of_a_value():
    text = "<seed:tool_call>\n<function=look_up>\n<parameter=code>\na\n</parameter>\n</function>\n</seed:tool_call>"
    assert arguments_of(parse(text, "seed_oss")) == {"code": "\na\n"}


def test_an_unknown_function_is_an_ordinary_call():
    (found,) = parse(call(row("x", "1"), name="no-such.tool"))["tool_calls"]
    assert found["function"] == {"name": "no-such.tool", "arguments": '{"x": 1}'}


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ([row("code", "1"), row("code", "2")], "'code' twice"),
        (["<parameter=code>\n1\n", row("days", "2")], "expected </parameter> for 'code', found '<parameter='"),
        (["<parameter=code>\n1\n"], "expected </parameter> for 'code', found '<function='"),
        (["<parameter=code\n1\n</parameter>"], "expected '>' after the name 'code'"),
        (["surprise"], "expected </function>, found 's'"),
    ],
)
def test_what_is_not_closed_or_given_twice_marks_the_call(rows, error):
    text = call(*rows)
    message = parse(f"{text}\n{call(row('days', '5'))}")
    broken, good = message["tool_calls"]
    assert broken["raw"] == text
    assert broken["invalid"] is True
    assert error in broken["error"]
    assert json.loads(good["function"]["arguments"]) == {"days": 5}


def test_a_function_that_is_not_closed_marks_the_call():
    (found,) = parse("<tool_call>\n<function=ping>\n</tool_call>")["tool_calls"]
    assert found["error"] == "expected </function>, found '<'"


def test_a_call_whose_opening_mark_was_forgotten_is_read():
    text = call(row("days", "5")).removeprefix("<tool_call>\n")
    for end in ("\n</tool_call>", ""):
        message = parse(f"So:\n{text.removesuffix('</tool_call>').rstrip()}{end}\nDone.")
        assert arguments_of(message) == {"days": 5}
        assert message["content"] == "So:\nDone."
