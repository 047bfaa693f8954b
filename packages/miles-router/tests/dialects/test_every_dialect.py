"""What holds in every dialect: answers, streams, tools, ends and failures, each from one recorded turn."""

import re

import httpx
import pytest

from miles_core import sample_codec
from miles_router.app import create_router_app
from miles_router.config import RouterConfig
from miles_router.sessions.app import create_session_app
from miles_router.sessions.config import SessionServerConfig

HELLO = ("user", "hello there")


def test_a_conversation_with_a_tool_is_one_trajectory(bench, talk, Reply, speaker, CALL_TEXT):
    replies = iter([Reply(CALL_TEXT), Reply("It is fine."), Reply("Goodbye.")])
    engine, url = bench.engine(lambda prompt, body: next(replies))
    session = talk(url)
    history = [("system", "Be brief."), HELLO]
    first = session.say(speaker, history, tools=True)
    assert (first.text, first.finish) == ("I look.", "tool_calls")
    assert [(name, given) for _, name, given in first.calls] == [("look", {"at": "Paris"})]
    history += [first, ("result", first.calls[0][0], "sunny")]
    second = session.say(speaker, history, tools=True)
    assert (second.text, second.calls, second.finish) == ("It is fine.", (), "stop")
    history += [second, ("user", "bye")]
    assert session.say(speaker, history, tools=True).text == "Goodbye."
    state = session.state()
    assert [turn["extends"] for turn in state["turns"]] == [False, True, True]
    assert {turn["dialect"] for turn in state["turns"]} == {speaker.name}
    assert state["mismatch"]["0.0.0"]["hard"] == 0
    assert len(engine.calls[-1]["input_ids"]) == state["turns"][-1]["prompt_tokens"]


def test_the_streamed_answer_and_its_turn_are_those_not_streamed(bench, talk, Reply, speaker, CALL_TEXT):
    _, url = bench.engine(lambda prompt, body: Reply(CALL_TEXT))
    whole, streamed = talk(url, spec={"seed": 1}), talk(url, spec={"seed": 1})
    assert whole.say(speaker, [HELLO], tools=True) == streamed.stream(speaker, [HELLO], tools=True)
    assert whole.state()["turns"] == streamed.state()["turns"]


def test_reasoning_is_told_apart_whole_and_streamed_and_comes_back(bench, thinking, talk, Reply, speaker):
    replies = iter([Reply("<think>\nHm, so.\n</think>\n\nYes."), Reply("Done.")] * 2)
    _, url = bench.engine(lambda prompt, body: next(replies))
    for ask in ("say", "stream"):
        session = talk(url)
        first = getattr(session, ask)(speaker, [HELLO])
        assert (first.reasoning, first.text) == ("Hm, so.", "Yes.")
        assert getattr(session, ask)(speaker, [HELLO, first, HELLO]).text == "Done."
        assert [turn["extends"] for turn in session.state()["turns"]] == [False, True]


def test_a_call_that_cannot_be_read_comes_back_as_the_same_turn(bench, talk, Reply, SPEAKERS):
    # Only dialects whose arguments are a text show it as it was sampled; Anthropic's wraps it.
    speaker = SPEAKERS["anthropic"]
    replies = iter([Reply('<tool_call>\n{"name": broken\n</tool_call>'), Reply("Sorry."), Reply("Sorry.")])
    _, url = bench.engine(lambda prompt, body: next(replies))
    session = talk(url)
    first = session.stream(speaker, [HELLO], tools=True)
    ((identity, name, given),) = first.calls
    assert name == "invalid_tool_call"
    assert "broken" in given["text"]
    session.say(speaker, [HELLO, first, ("result", identity, "could not be read")], tools=True)
    assert session.state()["tree"] == {"0": None, "0.0": "0"}


@pytest.mark.parametrize("ask", ["say", "stream"])
def test_an_answer_cut_at_its_limit_says_so(bench, talk, Reply, speaker, ask):
    _, url = bench.engine(lambda prompt, body: Reply("one two three four"))
    said = getattr(talk(url), ask)(speaker, [HELLO], **speaker.limit(3))
    assert (said.finish, said.tokens[1]) == ("length", 3)


@pytest.mark.parametrize("ask", ["say", "stream"])
def test_a_prompt_over_the_context_is_an_empty_answer_cut_at_its_length(bench, talk, Reply, speaker, ask):
    engine, url = bench.engine()
    said = getattr(talk(url, context_length=8), ask)(speaker, [HELLO])
    assert (said.text, said.calls, said.finish, said.tokens[1]) == ("", (), "length", 0)
    assert engine.calls == []


@pytest.mark.parametrize("ask", ["say", "stream"])
def test_a_conversation_that_runs_out_of_room_ends_at_its_length(bench, talk, Reply, speaker, ask):
    _, url = bench.engine(lambda prompt, body: Reply("a fine answer"))
    session = talk(url, spec={"max_seq_len": 60})
    first = getattr(session, ask)(speaker, [HELLO])
    last = getattr(session, ask)(speaker, [HELLO, first, ("user", "x" * 60)])
    assert (last.text, last.finish) == ("", "length")


KINDS = {
    401: ("authentication_error", "authentication_error"),
    404: ("not_found_error", "not_found_error"),
    413: ("request_too_large", "request_too_large"),
    429: ("rate_limit_error", "rate_limit_error"),
    503: ("overloaded_error", "overloaded_error"),
    502: ("server_error", "api_error"),
    400: ("invalid_request_error", "invalid_request_error"),
}


def expect(speaker, answer, status):
    kind, message = speaker.failure(answer.json())
    assert answer.status_code == status, answer.text
    assert kind == KINDS[status][speaker.name == "anthropic"]
    assert message
    identity = answer.headers["request-id" if speaker.name == "anthropic" else "x-request-id"]
    assert identity.startswith("req_")
    return message


def test_failures_before_the_answer_have_the_dialects_body_and_status(bench, talk, Reply, speaker):
    _, url = bench.engine()
    session = talk(url, token=None, body_limit_bytes=3000)
    body = speaker.body([HELLO])
    missing = session.http.post(f"/sessions/none{speaker.path}", json=body)
    assert "none" in expect(speaker, missing, 404)
    expect(speaker, session.post(speaker, {**body, "x": "y" * 4000}), 413)
    chunks = (b" " * 100 for _ in range(40))
    expect(speaker, session.http.post(f"/sessions/{session.session}{speaker.path}", content=chunks), 413)
    assert "odd_field" in expect(speaker, session.post(speaker, {**body, "odd_field": 1}), 400)
    expect(speaker, session.http.post(f"/sessions/{session.session}{speaker.path}", content=b"{"), 400)
    assert session.state()["turns"] == []


def test_the_token_is_asked_for_in_the_dialect(bench, speaker):
    _, url = bench.engine()
    _, sessions = bench.sessions(url, token="t")
    http = bench.client(sessions)
    path, body = f"/sessions/none{speaker.path}", speaker.body([HELLO])
    expect(speaker, http.post(path, json=body), 401)
    expect(speaker, http.post(path, json=body, headers={"x-api-key": "no"}), 401)
    for headers in ({"Authorization": "Bearer t"}, {"x-api-key": "t"}):
        expect(speaker, http.post(path, json=body, headers=headers), 404)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [429, 503])
def test_the_engines_own_failure_is_passed_on(bench, talk, Reply, speaker, stream, status):
    _, url = bench.engine(lambda prompt, body: Reply(status=status))
    session = talk(url)
    answer = session.post(speaker, speaker.body([HELLO], **(speaker.stream_fields if stream else {})))
    assert answer.status_code == status
    if speaker.name == "anthropic":
        assert "scripted" in expect(speaker, answer, status)
    else:
        assert answer.json()["error"]["message"] == "scripted"
    assert (session.state()["turns"], session.state()["failed_turns"]) == ([], 1)


def test_an_engine_that_answers_nonsense_is_a_failure_of_the_server(bench, talk, Reply, speaker):
    _, url = bench.engine(lambda prompt, body: Reply(drop_logprob=True))
    expect(speaker, talk(url).post(speaker, speaker.body([HELLO])), 502)


def test_a_stream_that_breaks_off_ends_in_the_dialects_failure_and_records_nothing(bench, talk, Reply, speaker):
    replies = iter([Reply("abcdef", cut_after=3), Reply("whole")])
    _, url = bench.engine(lambda prompt, body: next(replies))
    session = talk(url)
    name, data = session.events(speaker, [HELLO])[-1]
    if speaker.name == "openai_responses":
        assert (name, data["response"]["status"]) == ("response.failed", "failed")
        assert data["response"]["error"]["code"] == "server_error"
    else:
        error = data["error"]
        assert error["type"] == ("api_error" if speaker.name == "anthropic" else "server_error")
        assert name == ("error" if speaker.name == "anthropic" else "")
    assert session.state()["turns"] == []
    assert session.say(speaker, [HELLO]).text == "whole"


def test_a_silent_stream_is_kept_open_by_pings(bench, talk, Reply, speaker, read_events):
    _, url = bench.engine(lambda prompt, body: Reply("late", delay_s=0.4))
    session = talk(url, ping_s=0.05)
    answer = session.post(speaker, speaker.body([HELLO], **speaker.stream_fields))
    ping = "event: ping" if speaker.name == "anthropic" else ": ping"
    first_text = re.search(r'"(content|text|delta)":"l', answer.text)
    assert answer.text[: first_text.start()].count(ping) >= 3
    assert speaker.read_stream(read_events(answer.text)).text == "late"


def test_deltas_arrive_while_the_engine_still_samples(bench, talk, Reply, speaker):
    engine, url = bench.engine(lambda prompt, body: Reply("abcdefghij", step_s=0.05))
    session = talk(url)
    body = speaker.body([HELLO], **speaker.stream_fields)
    with session.http.stream("POST", f"/sessions/{session.session}{speaker.path}", json=body) as answer:
        for line in answer.iter_lines():
            if "delta" in line and '"a' in line:
                assert engine.active == 1
                break
        else:
            pytest.fail("no delta came")


def test_a_reader_that_leaves_finds_its_answer_when_it_asks_again(bench, talk, Reply, speaker, until):
    engine, url = bench.engine(lambda prompt, body: Reply("abcdefghij", step_s=0.02))
    session = talk(url)
    body = speaker.body([HELLO], **speaker.stream_fields)
    path = f"/sessions/{session.session}{speaker.path}"
    with httpx.Client(base_url=session.http.base_url) as other, other.stream("POST", path, json=body) as answer:
        next(answer.iter_lines())
    until(lambda: session.state()["turns"], "the turn")
    assert session.state()["turns"][0]["delivered"] is False
    said = session.stream(speaker, [HELLO])
    assert said.text == "abcdefghij"
    assert len(engine.calls) == 1
    assert session.state()["turns"][0]["delivered"] is True
    found = session.http.post(f"/sessions/{session.session}/samples", json={"prompt_id": "p", "rollout_id": "r"})
    assert len(sample_codec.decode(found.content)) == 1


def test_one_idempotency_key_gives_one_answer(bench, talk, Reply, speaker):
    engine, url = bench.engine(lambda prompt, body: Reply("once"))
    session = talk(url)
    for _ in range(2):
        answer = session.post(speaker, speaker.body([HELLO]), headers={"Idempotency-Key": "k"})
        assert speaker.said(answer.json()).text == "once"
    assert len(engine.calls) == 1


def test_sessions_and_router_in_one_process_speak_every_dialect(bench, Reply, speaker, read_events):
    _, engine = bench.engine(lambda prompt, body: Reply("yes"))
    sessions = create_session_app(
        SessionServerConfig(engine_url=engine, model_dir=bench.model_dir, token="t"), chat=bench.chat
    )
    url = bench.serve(create_router_app(RouterConfig(workers=(engine,), token="t"), sessions=sessions))
    http = bench.client(url, headers={"x-api-key": "t"})
    session = http.post("/sessions").json()["session_id"]
    path = f"/sessions/{session}{speaker.path}"
    assert speaker.said(http.post(path, json=speaker.body([HELLO])).json()).text == "yes"
    streamed = http.post(path, json=speaker.body([HELLO], **speaker.stream_fields))
    assert speaker.read_stream(read_events(streamed.text)).text == "yes"
    assert http.post(f"/sessions/none{speaker.path}", json=speaker.body([HELLO])).status_code == 404
