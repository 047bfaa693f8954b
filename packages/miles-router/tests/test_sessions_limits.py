"""What an engine can take, and what a server lets sessions hold."""

import pytest

from miles_router.sessions.context import Limits, limits_of, read_limits

USER = {"role": "user", "content": "hello"}


@pytest.mark.parametrize(
    ("info", "limits"),
    [
        ({"context_length": 100}, Limits(100, 99)),
        ({"context_length": None, "max_req_input_len": 94}, Limits(98, 93)),
        ({"context_length": 4096, "max_req_input_len": 94}, Limits(98, 93)),
        ({"context_length": 0}, None),
        ({"context_length": "long"}, None),
        ({}, None),
    ],
)
def test_what_an_engine_reports(info, limits):
    assert read_limits(info) == limits


def test_room_is_what_is_left_of_the_smaller_limit():
    sglang = Limits(98, 93)
    assert [sglang.room(prompt) for prompt in (10, 93, 94, 200)] == [88, 5, 0, 0]
    assert sglang.room(10, most=20) == 10
    assert sglang.room(10, most=500) == 88
    assert limits_of(100).less(6).room(93) == 1
    assert limits_of(100).less(6).room(94) == 0


@pytest.mark.parametrize(("words", "asked"), [(1, True), (60, False)])
def test_a_prompt_that_sglang_would_refuse_is_never_sent(bench, caller, Reply, chat, words, asked):
    """SGLang serves prompts of fewer than `max_req_input_len` tokens, with a null `context_length` in its report."""
    message = {"role": "user", "content": "hello " * words}
    length = len(chat.begin([message]).ids)
    engine, url = bench.engine(lambda prompt, body: Reply("x" * 50))
    most_input = length + 1 if asked else length
    engine.answer_info = {"context_length": None, "max_req_input_len": most_input}
    real = engine._json

    async def report(send, status, value, headers=()):
        await real(send, status, engine.answer_info if "context_length" in value else value, headers)

    engine._json = report
    client = caller(url)
    answer = client.ask(client.create(), [message]).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert len(engine.calls) == int(asked)
    if asked:
        # Prompt and answer end before the context does: SGLang refuses what reaches its end.
        assert length + engine.calls[0]["sampling_params"]["max_new_tokens"] == most_input + 4


def test_a_session_that_holds_too_many_bytes_is_answered_409_and_others_go_on(bench, caller, Reply):
    _, url = bench.engine(lambda prompt, body: Reply("a"))
    client = caller(url, max_session_bytes=100_000)
    session = client.create()
    client.say(session, [{"role": "user", "content": "x" * 3000}])
    answer = client.ask(session, [USER])
    assert answer.status_code == 409
    assert "the limit is 100000" in answer.json()["error"]["message"]
    assert len(client.samples(session)) == 1
    client.say(client.create(), [USER])


def test_all_sessions_together_hold_no_more_than_they_may_and_deleting_makes_room(bench, caller, Reply):
    _, url = bench.engine(lambda prompt, body: Reply("a"))
    client = caller(url, max_total_bytes=200_000)
    first, second = client.create(), client.create()
    for session in (first, second):
        client.say(session, [{"role": "user", "content": "x" * 3000}])
    assert client.ask(first, [USER]).status_code == 429
    assert client.http.post("/sessions").status_code == 429
    assert client.http.delete(f"/sessions/{second}").status_code == 204
    client.say(first, [USER])


def test_expired_sessions_make_room_for_new_ones(bench, caller, Reply, until):
    _, url = bench.engine(lambda prompt, body: Reply("a"))
    client = caller(url, max_total_bytes=100_000, ttl_s=0.2, sweep_s=1000)
    client.say(client.create(), [{"role": "user", "content": "x" * 3000}])
    assert client.http.post("/sessions").status_code == 429
    until(lambda: client.http.post("/sessions").status_code == 200, "the first to expire")


def test_a_stream_gives_each_token_the_version_that_came_with_it(bench, caller, Reply):
    """An engine that swaps its weights within an answer names the version of the moment with each event."""
    engine, url = bench.engine(lambda prompt, body: Reply(ids=[10, 11, 12, 13], finish="length"))
    real = engine.answer

    def answer(ids, finish, reply, prompt_tokens):
        engine.version = "7" if len(ids) < 3 else "8"
        return real(ids, finish, reply, prompt_tokens)

    engine.answer = answer
    client = caller(url)
    session = client.create()
    client.stream(session, [USER])
    (sample,) = client.samples(session)
    assert sample.weight_versions[sample.loss_mask].tolist() == [7, 7, 8, 8]
