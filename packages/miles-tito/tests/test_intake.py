"""Whatever an HTTP body or a policy can carry, the answer is a transcript or a sentence, never Python's own error."""

import json

import pytest

from miles_core.errors import MilesError, RecordError, TokenError
from miles_tito.intake import check_json

USER = {"role": "user", "content": "hi"}
LONE = "\ud800"


def calling(**more):
    function = {"name": "look", "arguments": "{}"}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c", "type": "function", "function": function}],
    } | more


def nested(levels, bottom="x"):
    for _ in range(levels):
        bottom = {"k": bottom}
    return bottom


@pytest.fixture(scope="module")
def chat(chat_for):
    return chat_for("chatml")


@pytest.fixture(scope="module")
def done(chat, encode):
    return chat.begin([USER]).sampled(encode(chat, "a<|im_end|>"))


MESSAGES = {
    "a lone surrogate": ({"role": "user", "content": LONE}, "lone surrogate '.ud800' at offset 0"),
    "a lone surrogate in a part": ({"role": "user", "content": [{"type": "text", "text": f"a{LONE}"}]}, "at offset 1"),
    "a lone surrogate as a key": ({**USER, LONE: 1}, "lone surrogate"),
    "a mark as a key": ({**USER, "\ufdd0": 1}, "U\\+FDD0"),
    "deep nesting": ({**USER, "more": nested(3000)}, "nested at most 100 levels"),
    "an object as an id": ({"role": "tool", "content": "r", "tool_call_id": {}}, "tool_call_id as a string"),
    "a list as a name": ({**USER, "name": []}, "name as a string"),
    "a list as a call's id": (
        calling(tool_calls=[{**calling()["tool_calls"][0], "id": []}]),
        "tool call 0: expected id",
    ),
    "a number as raw": (
        calling(tool_calls=[{**calling()["tool_calls"][0], "invalid": True, "raw": 5}]),
        "expected raw",
    ),
    "calls that are a number": (calling(tool_calls=5), "tool_calls as a list"),
    "a call without function": (calling(tool_calls=[{}]), "function.name as a string"),
    "a null function": (calling(tool_calls=[{"function": None}]), "function.name as a string"),
    "a function without name": (calling(tool_calls=[{"function": {}}]), "function.name as a string"),
    "reasoning that is an object": ({"role": "assistant", "content": "", "reasoning": {}}, "reasoning as a string"),
    "text for a message": ("x", "an object with a role"),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_of_the_wrong_form_is_refused_wherever_it_comes_in(chat, done, encode, name):
    message, reason = MESSAGES[name]
    with pytest.raises(MilesError, match=reason):
        chat.begin([USER, message])
    with pytest.raises(MilesError, match=reason):
        chat.append(done, [message])
    with pytest.raises(MilesError, match=reason):
        chat.begin([USER]).sampled(encode(chat, "a<|im_end|>"), message=message)


@pytest.mark.parametrize(
    "tools", [["a"], {"a": 1}, [None], "tools", 5, [{"type": "function", "function": []}], [nested(200)], [{"a": LONE}]]
)
def test_tools_of_the_wrong_form_are_refused(chat, encode, tools):
    with pytest.raises(TokenError):
        chat.begin([USER], tools)
    with pytest.raises(TokenError):
        chat.parse(encode(chat, "a"), tools=tools)


def with_arguments(arguments):
    message = calling()
    message["tool_calls"][0]["function"]["arguments"] = arguments
    return message, {"role": "tool", "tool_call_id": "c", "content": "r"}


@pytest.mark.parametrize("arguments", ["[" * 1500 + "]" * 1500, "[" * 100_000, "{", "[" * 101 + "]" * 101])
def test_arguments_that_no_object_can_be_made_of_stay_text(chat, encode, arguments):
    message, result = with_arguments(arguments)
    assert json.dumps(arguments) in chat.vocabulary.decode(chat.begin([USER, message, result]).ids)
    turn = chat.begin([USER]).sampled(encode(chat, "a<|im_end|>"), message=message)
    assert chat.verify(chat.append(turn, [result])).hard == 0


def test_arguments_that_escape_half_a_character_are_rendered_with_a_replacement(chat, encode):
    message, result = with_arguments('{"a": "\\ud800"}')
    assert "\ufffd" in chat.vocabulary.decode(chat.begin([USER, message, result]).ids)
    turn = chat.begin([USER]).sampled(encode(chat, "a<|im_end|>"), message=message)
    assert chat.verify(chat.append(turn, [result])).hard == 0


def test_json_is_nested_at_most_a_hundred_levels():
    check_json(nested(98))
    with pytest.raises(TokenError, match="flatten"):
        check_json(nested(100))
    assert json.loads(json.dumps(nested(98))) == nested(98)


@pytest.mark.parametrize("ids", [["a"], [None], None, "12", [1.7], [True], {"a": 1}, [2**40], [-1], 5])
def test_ids_that_are_no_integers_are_refused(chat, ids):
    with pytest.raises(TokenError):
        chat.begin([USER]).sampled(ids)
    with pytest.raises(TokenError):
        chat.parse(ids)


@pytest.mark.parametrize(
    "more",
    [
        {"finish": "foo"}, {"finish": None}, {"finish": []}, {"logprobs": [None]}, {"logprobs": ["-1"]},
        {"logprobs": 0.5}, {"logprobs": [-1.0, -1.0]}, {"logprobs": [float("nan")]}, {"logprobs": [10**400]},
        {"weight_version": "x"}, {"weight_version": 1.5}, {"weight_versions": ["x"]}, {"weight_versions": 3},
    ],
)  # fmt: skip
def test_what_comes_with_ids_is_checked(chat, more):
    with pytest.raises(MilesError):
        chat.begin([USER]).sampled([1], **more)


def test_numbers_of_other_libraries_are_numbers(chat):
    class Index:
        def __index__(self):
            return 3

    turn = chat.begin([USER]).sampled([Index()], logprobs=[-1], weight_version=Index())
    assert turn.spans[1].ids == (3,)
    assert turn.spans[1].logprobs == (-1.0,)
    assert turn.spans[1].weight_versions == (3,)


@pytest.mark.parametrize("number", [300, 10**6, 2**31 - 1])
def test_an_id_without_a_token_is_kept_and_shown(chat, encode, number):
    ids = [*encode(chat, "a"), number, *encode(chat, "b<|im_end|>")]
    turn = chat.begin([USER]).sampled(ids)
    assert turn.messages[1]["content"] == "a\ufffdb"
    assert turn.spans[1].ids == tuple(ids)
    after = chat.append(turn, [USER])
    assert chat.verify(after).hard == 0
    assert chat.vocabulary.decode([number, number]) == "\ufffd\ufffd"
    assert chat.parse([number])["content"] == "\ufffd"


def test_a_part_that_is_no_text_is_refused_with_the_place_of_its_message(chat, done):
    image = {"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": "x"}]}
    refusal = "^message 1: expected text parts in the content, found a part of type 'image_url'"
    with pytest.raises(RecordError, match=refusal):
        chat.begin([USER, image])
    with pytest.raises(RecordError, match=refusal):
        chat.append(done, [USER, image])
