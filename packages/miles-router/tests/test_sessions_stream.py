"""Streaming: deltas as they come, and the same turn on record as without it."""

import json
import time

import httpx
import pytest

USER = {"role": "user", "content": "hello"}
CALL = 'I look.\n<tool_call>\n{"name": "look", "arguments": {"at": "Z\u00fcrich \U0001f642"}}\n</tool_call>'


def joined(chunks):
    content, calls = "", []
    for chunk in chunks:
        for choice in chunk["choices"]:
            content += choice["delta"].get("content") or ""
            calls += choice["delta"].get("tool_calls") or []
    return content, [{name: value for name, value in call.items() if name != "index"} for call in calls]


@pytest.mark.parametrize("text", ["plain words", CALL, "half \u00fc and \U0001f642", '<tool_call>\n{"name": broken'])
def test_the_streamed_turn_is_the_one_that_is_not_streamed(bench, caller, Reply, text):
    engine, url = bench.engine(lambda prompt, body: Reply(text))
    client = caller(url)
    streamed, whole = client.create(seed=1), client.create(seed=1)
    chunks = client.stream(streamed, [USER])
    message = client.say(whole, [USER])
    content, calls = joined(chunks)
    assert content == (message["content"] or "")
    assert calls == message.get("tool_calls", [])
    one, two = (client.state(session)["turns"][0] for session in (streamed, whole))
    assert one == two
    assert client.samples(streamed) == client.samples(whole)
    assert engine.calls[0]["input_ids"] == engine.calls[1]["input_ids"]
    assert engine.calls[0]["sampling_params"] == engine.calls[1]["sampling_params"]


def test_chunks_have_openais_shape_with_usage_when_asked_for(bench, caller, Reply, chat):
    _, url = bench.engine(lambda prompt, body: Reply("ab"))
    client = caller(url)
    chunks = client.stream(client.create(), [USER], stream_options={"include_usage": True}, logprobs=True)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]][-1] == "stop"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == len(chat.vocabulary.encode("ab")[0]) + 1
    entries = [e for c in chunks if c["choices"] for e in (c["choices"][0]["logprobs"] or {}).get("content", [])]
    assert len(entries) == chunks[-1]["usage"]["completion_tokens"]


def test_deltas_arrive_while_the_engine_still_samples(bench, caller, Reply):
    _, url = bench.engine(lambda prompt, body: Reply("abcdefghij", step_s=0.05))
    client = caller(url)
    session = client.create()
    times = []
    body = {"messages": [USER], "stream": True}
    with client.http.stream("POST", f"/sessions/{session}/v1/chat/completions", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
                times.append(time.monotonic())
    assert len(times) >= 5
    assert times[-1] - times[0] > 0.2


def test_through_the_router_the_stream_is_the_same(bench, caller, Reply):
    _, engine = bench.engine(lambda prompt, body: Reply(CALL, step_s=0.002))
    _, router = bench.router(engine)
    client = caller(router)
    session = client.create()
    content, calls = joined(client.stream(session, [USER]))
    assert content == "I look."
    assert json.loads(calls[0]["function"]["arguments"]) == {"at": "Z\u00fcrich \U0001f642"}


def test_an_engine_that_fails_before_its_stream_gives_its_status(bench, caller, Reply):
    _, url = bench.engine(lambda prompt, body: Reply(status=429))
    client = caller(url)
    answer = client.ask(client.create(), [USER], stream=True)
    assert (answer.status_code, answer.json()["error"]["message"]) == (429, "scripted")


def test_a_stream_that_breaks_off_ends_in_an_error_event_and_records_nothing(bench, caller, Reply):
    replies = iter([Reply("abcdef", cut_after=3), Reply("whole")])
    _, url = bench.engine(lambda prompt, body: next(replies))
    client = caller(url)
    session = client.create()
    answer = client.ask(session, [USER], stream=True)
    last = answer.text.strip().split("\n")[-1]
    assert "error" in json.loads(last.removeprefix("data: "))
    assert client.state(session)["turns"] == []
    assert client.say(session, [USER])["content"] == "whole"


def test_a_reader_that_leaves_after_the_last_word_has_taken_the_answer(bench, caller, Reply, until):
    _, url = bench.engine(lambda prompt, body: Reply("abc", step_s=0.01))
    client = caller(url)
    session = client.create()
    body = {"messages": [USER], "stream": True}
    with httpx.stream("POST", client.url(session), json=body) as answer:
        for line in answer.iter_lines():
            if '"finish_reason":"stop"' in line:
                break
    until(lambda: client.state(session)["turns"], "the turn")
    time.sleep(0.1)
    assert client.state(session)["turns"][0]["delivered"] is True
    assert len(client.samples(session)) == 1
