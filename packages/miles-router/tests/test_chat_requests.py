"""What a chat request may hold: supported, or 400 with the field and the reason."""

import json

import pytest

from miles_core.errors import SessionError
from miles_router.sessions.dialects.openai_chat.request import parse_request
from miles_router.sessions.routes import parse_spec

MESSAGES = [{"role": "user", "content": "hi"}]
IMAGE = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:"}}]


def parse(**fields):
    return parse_request(json.dumps({"messages": MESSAGES, **fields}).encode())


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"n": 2}, "n: only 1"),
        ({"best_of": 3}, "best_of: this field is not known"),
        ({"input_ids": [1]}, "input_ids: this field is not known"),
        ({"messages": [{"role": "user", "content": IMAGE}]}, "image_url"),
        ({"messages": []}, "at least one message"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "robot", "content": ""}]}, "role"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "function.name"),
        ({"messages": None}, "messages"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "give one of them"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"seed": 1.5}, "seed"),
        ({"logit_bias": {"5": 10}}, "logit_bias"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"name": "x"}]}, "tools.0"),
        ({"tools": {"a": 1}}, "tools: expected a list"),
        ({"stop": [3]}, "stop"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True, "odd": 1}}, "stream_options"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"n": True}, "n: only 1"),
    ],
)
def test_what_is_not_supported_is_400_and_names_the_field(fields, says):
    with pytest.raises(SessionError, match=says) as caught:
        parse(**fields)
    assert caught.value.status == 400


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"messages": "\xff"}'])
def test_a_body_that_is_no_json_object_is_400(body):
    with pytest.raises(SessionError, match="expected a JSON object"):
        parse_request(body)


def test_fields_that_change_no_token_are_accepted():
    request = parse(
        model="any", user="u", metadata={"a": 1}, n=1, store=False, tool_choice="auto", stop=None, logit_bias={},
        response_format={"type": "text"}, presence_penalty=0, parallel_tool_calls=True, max_completion_tokens=4,
        temperature=0, stream=True, stream_options={"include_usage": True},
    )  # fmt: skip
    turn = request.turn
    assert (turn.max_tokens, turn.temperature, turn.stream, request.include_usage) == (4, 0.0, True, True)


def test_tool_choice_none_hides_the_tools():
    tool = {"type": "function", "function": {"name": "f"}}
    assert parse(tools=[tool], tool_choice="none").turn.tools == ()
    assert parse(tools=[tool]).turn.tools == (tool,)
    assert parse().turn.tools is None


def test_a_request_has_one_fingerprint_whatever_the_order_of_its_fields():
    one = parse_request(b'{"messages": [{"role": "user", "content": "hi"}], "seed": 1}')
    two = parse_request(b'{"seed":1,"messages":[{"content":"hi","role":"user"}]}')
    assert one.turn.fingerprint == two.turn.fingerprint
    assert one.turn.fingerprint != parse(seed=2).turn.fingerprint


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"sampling": {"temperature": -1}}, "sampling.temperature"),
        ({"sampling": {"min_p": 0.1}}, "sampling.min_p"),
        ({"seed": "x"}, "seed"),
        ({"max_seq_len": 0}, "max_seq_len"),
        ({"tools": [1]}, "tools.0"),
        ({"ttl": 5}, "ttl"),
    ],
)
def test_a_session_that_asks_for_the_impossible_is_400(spec, says):
    with pytest.raises(SessionError, match=says) as caught:
        parse_spec(json.dumps(spec).encode())
    assert caught.value.status == 400


def test_errors_over_http_have_openais_shape(bench, caller):
    engine, url = bench.engine()
    client = caller(url)
    session = client.create()
    answer = client.ask(session, MESSAGES, n=3)
    assert answer.status_code == 400
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert client.http.get("/nowhere").json()["error"]["type"] == "not_found_error"
    assert client.http.post("/sessions", content=b"[1]").status_code == 400
    assert client.http.post(f"/sessions/{session}/samples", json={"prompt_id": 3}).status_code == 400
    assert engine.calls == []


def test_a_body_over_the_limit_is_413(bench, caller):
    _, url = bench.engine()
    client = caller(url, body_limit_bytes=2000)
    session = client.create()
    path = f"/sessions/{session}/v1/chat/completions"
    assert client.http.post(path, content=b" " * 2001).status_code == 413
    assert client.http.post(path, content=(b" " * 100 for _ in range(30))).status_code == 413
