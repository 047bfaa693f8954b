"""`<arg_key>` and `<arg_value>`, with newlines and without."""

import json

import pytest

from miles_tito import StreamParser
from miles_tito.parsers.formats import format_named

from .written_turns import TOOLS


def parse(text, name="glm45", tools=TOOLS):
    return StreamParser(format_named(name), tools=tools).parse(text)


def test_each_name_reads_the_layout_of_the_other():
    for name in ("glm45", "glm47"):
        for n in ("", "\n"):
            text = f"<tool_call>look_up{n}<arg_key>days</arg_key>{n}<arg_value>3</arg_value>{n}</tool_call>"
            (found,) = parse(text, name)["tool_calls"]
            assert found["function"] == {"name": "look_up", "arguments": '{"days": 3}'}


def test_a_string_stays_a_string_by_its_schema():
    text = "<tool_call>look_up<arg_key>code</arg_key><arg_value>42</arg_value></tool_call>"
    assert json.loads(parse(text)["tool_calls"][0]["function"]["arguments"]) == {"code": "42"}
    assert json.loads(parse(text, tools=())["tool_calls"][0]["function"]["arguments"]) == {"code": 42}


def test_white_space_of_a_value_is_kept():
    text = "<tool_call>look_up<arg_key>code</arg_key><arg_value>\n a \n</arg_value></tool_call>"
    assert json.loads(parse(text)["tool_calls"][0]["function"]["arguments"]) == {"code": "\n a \n"}


def test_a_value_may_hold_the_marks_of_a_call():
    value = "see <tool_call>f</tool_call> and <arg_value>"
    text = f"<tool_call>look_up<arg_key>code</arg_key><arg_value>{value}</arg_value></tool_call>"
    assert json.loads(parse(text)["tool_calls"][0]["function"]["arguments"]) == {"code": value}


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("", "the name of a function, found ''"),
        ('{"name": "a", "arguments": {}}', "the name of a function"),
        ("two words", "the name of a function"),
        ("a<arg_value>1</arg_value>", "expected </tool_call>, found '<arg_value>'"),
        ("a<arg_key>k<arg_value>1</arg_value>", "expected </arg_key>, found '<arg_value>'"),
        ("a<arg_key>k</arg_key>", "expected <arg_value>, found '<'"),
        ("a<arg_key>k</arg_key><arg_value>1", "expected </arg_value>, found 'the end of the turn'"),
        ("a<arg_key>k</arg_key><arg_value>1<arg_key>l</arg_key>", "expected </arg_value>, found '<arg_key>'"),
        ("a<arg_key>k</arg_key><arg_value>1</arg_value>x", "found 'x'"),
        (
            "a<arg_key>k</arg_key><arg_value>1</arg_value><arg_key>k</arg_key><arg_value>1</arg_value>",
            "'k' twice",
        ),
    ],
)
def test_a_body_that_cannot_be_read_is_marked(body, error):
    broken, good = parse(f"<tool_call>{body}</tool_call>\n<tool_call>ping\n</tool_call>")["tool_calls"]
    assert broken["raw"] == f"<tool_call>{body}</tool_call>"
    assert error in broken["error"]
    assert good["function"]["name"] == "ping"
