"""`<invoke>` and `<parameter>`: MiniMax by schema, DeepSeek by attribute."""

import json

import pytest

from miles_tito import StreamParser
from miles_tito.parsers.formats import format_named

from .written_turns import TOOLS


def parse(text, name="minimax_m2", tools=TOOLS):
    return StreamParser(format_named(name), tools=tools).parse(text)


def section(text):
    return f"<minimax:tool_call>\n{text}\n</minimax:tool_call>"


def arguments_of(message):
    (found,) = message["tool_calls"]
    assert not found.get("invalid"), found
    return json.loads(found["function"]["arguments"])


def test_a_value_has_the_type_of_its_schema():
    rows = '<parameter name="code">42</parameter><parameter name="days">42</parameter>'
    assert arguments_of(parse(section(f'<invoke name="look_up">{rows}</invoke>'))) == {"code": "42", "days": 42}


def test_an_attribute_says_whether_a_value_is_a_string():
    rows = (
        '<｜DSML｜parameter name="days" string="true">42</｜DSML｜parameter>'
        '<｜DSML｜parameter name="code" string="false">42</｜DSML｜parameter>'
        '<｜DSML｜parameter name="more">{"a": 1}</｜DSML｜parameter>'
    )
    call = f'<｜DSML｜invoke name="look_up">{rows}</｜DSML｜invoke>'
    text = f"<｜DSML｜tool_calls>{call}</｜DSML｜tool_calls>"
    assert arguments_of(parse(text, "deepseek_v4")) == {"days": "42", "code": 42, "more": {"a": 1}}


def test_a_value_may_hold_the_marks_that_close_a_call():
    value = "see </invoke>\n</minimax:tool_call>"
    text = section(f'<invoke name="look_up"><parameter name="code">{value}</parameter></invoke>')
    assert arguments_of(parse(text)) == {"code": value}


def test_an_invocation_outside_its_section_is_content():
    text = 'Write <invoke name="a"></invoke> for it.'
    assert parse(text) == {"role": "assistant", "content": text}


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("a>", "expected a quoted name"),
        ('a"><parameter name="x">1</parameter><parameter name="x">1</parameter>', "'x' twice"),
        ('a"><parameter name="x">1<parameter name="y">2</parameter>', "expected </parameter> for 'x'"),
        ('a"><parameter name="x">1', "expected </parameter> for 'x'"),
        ('a">what', "expected </invoke>, found 'w'"),
    ],
)
def test_an_invocation_that_cannot_be_read_is_marked(body, error):
    message = parse(section(f'<invoke name="{body}</invoke>\n<invoke name="ping">\n</invoke>'))
    broken, good = message["tool_calls"]
    assert broken["raw"] == f'<invoke name="{body}</invoke>'
    assert error in broken["error"]
    assert good["function"]["name"] == "ping"


def test_a_value_declared_as_json_that_is_none_marks_the_call():
    text = (
        '<｜DSML｜tool_calls><｜DSML｜invoke name="a"><｜DSML｜parameter name="x" string="false">soon'
        "</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>"
    )
    assert "expected JSON" in parse(text, "deepseek_v4")["tool_calls"][0]["error"]
