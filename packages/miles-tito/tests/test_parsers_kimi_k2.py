"""Calls with ids in a section: Kimi K2 and DeepSeek V3."""

import pytest

from miles_tito import StreamParser
from miles_tito.parsers.formats import format_named


def parse(text, name="kimi_k2"):
    return StreamParser(format_named(name)).parse(text)


def kimi(identity, arguments="{}"):
    return f"<|tool_call_begin|>{identity}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


def section(text):
    return f"<|tool_calls_section_begin|>{text}<|tool_calls_section_end|>"


@pytest.mark.parametrize(
    ("identity", "name"),
    [("functions.a:0", "a"), ("functions.a.b:12", "a.b"), (" a:3 ", "a"), ("functions.get-x:1", "get-x")],
)
def test_the_id_names_the_function_and_is_kept(identity, name):
    (found,) = parse(section(kimi(identity)))["tool_calls"]
    assert (found["function"]["name"], found["id"]) == (name, identity.strip())


@pytest.mark.parametrize("identity", ["functions.a", "", "call_1", "functions.:0", "a b:0"])
def test_an_id_that_names_no_function_marks_the_call(identity):
    broken, good = parse(section(kimi(identity) + kimi("functions.b:1")))["tool_calls"]
    assert broken["raw"] == kimi(identity)
    assert "functions.name:0" in broken["error"]
    assert good["id"] == "functions.b:1"


def test_a_call_outside_a_section_is_read():
    message = parse(f"so {kimi('functions.a:0')} on")
    assert [found["id"] for found in message["tool_calls"]] == ["functions.a:0"]
    assert message["content"] == "so  on"


def test_text_between_the_calls_of_a_section_is_content():
    message = parse(section(f"{kimi('functions.a:0')} and {kimi('functions.b:1')}"))
    assert len(message["tool_calls"]) == 2
    assert message["content"] == " and "


def test_a_broken_call_ends_where_its_section_does():
    message = parse(section("<|tool_call_begin|>functions.a:0<|tool_call_argument_begin|>{") + "done")
    (found,) = message["tool_calls"]
    assert found["raw"] == "<|tool_call_begin|>functions.a:0<|tool_call_argument_begin|>{"
    assert message["content"] == "done"


def deepseek(body):
    return f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{body}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"


@pytest.mark.parametrize(
    ("name", "body", "error"),
    [
        ("deepseek_v31", "a{}", "expected <｜tool▁sep｜>"),
        ("deepseek_v31", "<｜tool▁sep｜>{}", "the name of a function"),
        ("deepseek_v31", "a<｜tool▁sep｜>[1]", "as an object, found list"),
        ("deepseek_v3", "builtin<｜tool▁sep｜>a\n```json\n{}\n```", "of type 'function', found 'builtin'"),
        ("deepseek_v3", "function<｜tool▁sep｜>a{}", "expected a newline after the name"),
        ("deepseek_v3", "function<｜tool▁sep｜>a\n{}", "expected ```json"),
        ("deepseek_v3", "function<｜tool▁sep｜>a\n```json\n{}", "expected ```, found '<'"),
    ],
)
def test_a_call_of_deepseek_that_cannot_be_read_is_marked(name, body, error):
    (found,) = parse(deepseek(body), name)["tool_calls"]
    assert found["raw"] == f"<｜tool▁call▁begin｜>{body}<｜tool▁call▁end｜>"
    assert found["function"]["arguments"] == body
    assert error in found["error"]
