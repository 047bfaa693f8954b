"""`call:name{key:value}`: nested values, quote marks, and what breaks off."""

import json

import pytest

from miles_tito import StreamParser
from miles_tito.parsers.formats import format_named

from .written_turns import TOOLS

Q = '<|"|>'


def parse(text, name="gemma4", tools=()):
    return StreamParser(format_named(name), tools=tools).parse(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-2.5", -2.5),
        ("true", True),
        ("None", None),
        ("null", None),
        (f"{Q}{Q}", ""),
        (f"{Q}a, b}} <tool_call|>{Q}", "a, b} <tool_call|>"),
        (f"{Q}42{Q}", "42"),
        ("[]", []),
        ("{}", {}),
        (f"[1,[{Q}x{Q}],{{a:{{b:2}}}}]", [1, ["x"], {"a": {"b": 2}}]),
        (f"{{{Q}a b{Q}:1}}", {"a b": 1}),
    ],
)
def test_a_value_is_read(text, value):
    (found,) = parse(f"<|tool_call>call:f{{x:{text},y:1}}<tool_call|>")["tool_calls"]
    assert json.loads(found["function"]["arguments"]) == {"x": value, "y": 1}


@pytest.mark.parametrize(
    "body",
    [
        "f{}",
        "call:f",
        "call:{}",
        "call:f{x}",
        "call:f{x:}",
        "call:f{x:bare}",
        "call:f{x:1,x:2}",
        "call:f{x:1",
        "call:f{x:1]}",
        f"call:f{{x:{Q}a}}",
        "call:f{x:1}}",
        "call:f{x:" + "[" * 500 + "]" * 500 + "}",
    ],
)
def test_a_body_that_cannot_be_read_is_marked(body):
    broken, good = parse(f"<|tool_call>{body}<tool_call|><|tool_call>call:g{{}}<tool_call|>")["tool_calls"]
    assert broken["raw"] == f"<|tool_call>{body}<tool_call|>"
    assert good["function"]["name"] == "g"


def test_functiongemma_types_its_quoted_values_by_the_schema():
    text = (
        "<start_function_call>call:look_up{days:<escape>3<escape>,code:<escape>3<escape>,warm:true}<end_function_call>"
    )
    (found,) = parse(text, "functiongemma", TOOLS)["tool_calls"]
    assert json.loads(found["function"]["arguments"]) == {"days": 3, "code": "3", "warm": True}
