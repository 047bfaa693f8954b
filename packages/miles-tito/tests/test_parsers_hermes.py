"""JSON between marks: what a body may be, and where a call that cannot be read ends."""

import json

import pytest

from miles_tito import StreamParser
from miles_tito.parsers.formats import format_named


def parse(text, name="hermes", **options):
    return StreamParser(format_named(name), **options).parse(text)


def body(arguments, name="a"):
    return f'{{"name": "{name}", "arguments": {arguments}}}'


def call(arguments, name="a"):
    return f"<tool_call>\n{body(arguments, name)}\n</tool_call>"


def arguments_of(message):
    return [json.loads(found["function"]["arguments"]) for found in message["tool_calls"]]


@pytest.mark.parametrize("text", ["</tool_call>", "<tool_call>", '"}}</tool_call>', "\\</tool_call>\\", "<think>"])
def test_a_mark_inside_a_json_string_is_text(text):
    message = parse(f"{call(json.dumps({'x': text}))}{call('{}', 'b')} so")
    assert arguments_of(message) == [{"x": text}, {}]
    assert message["content"] == " so"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"name": "a", "arguments": {', "expected JSON, found '<'"),
        ("[]", "an empty one"),
        ("[1]", "found int"),
        ('"a"', "expected JSON, found '\"'"),
        ("", "expected JSON, found '<'"),
        ('{"arguments": {}}', 'an object with a "name"'),
        ('{"name": 1, "arguments": {}}', 'an object with a "name"'),
        ('{"name": "", "arguments": {}}', "the name of a function"),
        ('{"name": " a", "arguments": {}}', "the name of a function"),
        ('{"name": "a", "arguments": [1]}', "as an object, found list"),
        ('{"name": "a", "arguments": "{"}', "expected JSON"),
        ('{"name": "a", "arguments": "1"}', "as an object, found int"),
        ('{"name": "a", "argument": {"x": 1}}', "found 'argument'"),
        ('{"name": "a", "arguments": {}, "type": "builtin"}', "found 'builtin'"),
        ('{"name": "a", "arguments": {"x": 1, "x": 2}}', "'x' twice"),
        ('{"name": "a", "arguments": {"x": NaN}}', "found NaN"),
        ('{"name": "a", "arguments": {"x": 1e999}}', "JSON can hold"),
        ('{"name": "a", "arguments": {"x": ' + "9" * 5000 + "}}", "expected JSON"),
        ('{"name": "a", "arguments": ' + '{"x":' * 10_000, "expected JSON"),
        ('{"name": "a", "arguments": ' + "[" * 10_000 + "]" * 10_000 + "}", "expected"),
        ('{"name": "\\ud800", "arguments": {}}', "the name of a function"),
        ("{'name': 'a', 'arguments': {}}", 'expected JSON, found "\'"'),
        ('{"name": "a", "arguments": {}}}', "expected </tool_call>, found '}'"),
        ('{"name": "a", "arguments": {}} {"name": "b"}', "expected </tool_call>, found '{'"),
        ("__import__('os').system('true')", "expected JSON, found '_'"),
        ('{"name": "a", "arguments": {"x": "never closed}}', "expected"),
    ],
)
def test_a_body_that_cannot_be_read_is_marked_and_what_follows_it_is_read(text, error):
    raw = f"<tool_call>{text}</tool_call>"
    message = parse(f"so {raw} and {call('{}', 'b')}")
    broken, good = message["tool_calls"]
    assert broken["invalid"] is True
    assert broken["raw"] == raw
    assert broken["function"] == {"name": "invalid_tool_call", "arguments": text}
    assert error in broken["error"]
    assert good["function"] == {"name": "b", "arguments": "{}"}
    assert message["content"] == "so  and "


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "a", "parameters": {"x": 1}}',
        '{"name": "a", "arguments": "{\\"x\\": 1}"}',
        '{"type": "function", "function": {"name": "a", "arguments": {"x": 1}}}',
        '[{"name": "a", "arguments": {"x": 1}}]',
    ],
)
def test_the_same_call_in_other_clothes_is_read(text):
    assert arguments_of(parse(f"<tool_call>{text}</tool_call>")) == [{"x": 1}]


@pytest.mark.parametrize(
    "text", ['{"name": "a"}', '{"name": "a", "arguments": null}', '{"name": "a", "arguments": ""}']
)
def test_no_arguments_are_none(text):
    expected = [{}] if '""' not in text else None
    message = parse(f"<tool_call>{text}</tool_call>")
    if expected is None:
        assert message["tool_calls"][0]["invalid"] is True
    else:
        assert arguments_of(message) == expected


def test_a_newline_in_a_string_is_let_through():
    assert arguments_of(parse(call('{"x": "a\nb\tc"}'))) == [{"x": "a\nb\tc"}]


def test_a_lone_surrogate_keeps_the_arguments_sendable():
    (found,) = parse(call('{"x": "\\ud800"}'))["tool_calls"]
    assert found["function"]["arguments"].encode() == b'{"x": "\\ud800"}'


def test_a_call_that_opens_inside_a_broken_one_is_read():
    message = parse(f'<tool_call>{{"name": "a", {call("{}", "b")}')
    broken, good = message["tool_calls"]
    assert broken["raw"] == '<tool_call>{"name": "a", '
    assert good["function"]["name"] == "b"


@pytest.mark.parametrize("text", [body("{}"), body('{"x": "never closed'), '{"na', ""])
def test_a_turn_that_ends_inside_a_call_marks_it(text):
    message = parse(f"so <tool_call>{text}")
    (found,) = message["tool_calls"]
    assert found["invalid"] is True
    assert f"so {found['raw']}" == f"so <tool_call>{text}"
    assert message["content"] == "so "


def test_a_turn_that_ends_inside_a_string_cuts_the_call_at_its_first_closing_mark():
    message = parse('<tool_call>{"name": "a", "arguments": {"x": "</tool_call> and')
    (found,) = message["tool_calls"]
    assert found["raw"] == '<tool_call>{"name": "a", "arguments": {"x": "</tool_call>'
    assert message["content"] == " and"


def test_a_mention_of_the_mark_in_content_is_a_marked_call_with_its_text():
    message = parse("Write <tool_call> first.")
    (found,) = message["tool_calls"]
    assert message["content"] + found["raw"] == "Write <tool_call> first."
    assert found["invalid"] is True


def test_a_mark_in_reasoning_is_reasoning():
    message = parse(f"<think>maybe {call('{}')}</think>{call('{}', 'b')}", "hermes+think")
    assert message["reasoning_content"] == f"maybe {call('{}')}"
    assert [found["function"]["name"] for found in message["tool_calls"]] == ["b"]


def test_ids_differ_within_a_conversation_and_stay_the_same_again():
    ids = [[found["id"] for found in parse(call("{}") * 3, call_seed=seed)["tool_calls"]] for seed in (1, 2, 1)]
    assert ids[0] == ids[2]
    assert len({*ids[0], *ids[1]}) == 6


def test_words_on_both_sides_of_a_call_stay_apart_as_they_were():
    assert parse(f"a\n{call('{}')}\nb")["content"] == "a\nb"
    assert parse(f"a{call('{}')}\n\nb")["content"] == "a\n\nb"
    assert parse(f"a{call('{}')}b")["content"] == "ab"
    assert parse(f"a\n{call('{}')}\n{call('{}')}\n")["content"] == "a"
    assert parse(f"\n{call('{}')}\n\nb")["content"] == "b"
