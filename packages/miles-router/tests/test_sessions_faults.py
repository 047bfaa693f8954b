"""Engines that fail, lie or abort: a clear status, nothing recorded, and the session goes on."""

import socket

import pytest

USER = {"role": "user", "content": "hello"}


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ({"drop_logprob": True}, "one log-probability per output id"),
        ({"finish": "abort"}, "scripted abort"),
        ({"finish": "odd"}, "finish reason"),
        ({"ids": []}, "without a token"),
        ({"meta": {"output_token_logprobs": [[-1.0, 99999, None]], "x": 1}, "ids": [5], "finish": "length"}, "99999"),
        ({"meta": {"output_token_logprobs": [[0.5, 5, None]]}, "ids": [5], "finish": "length"}, "0.5"),
        ({"meta": {"output_token_logprobs": [[None, 5, None]]}, "ids": [5], "finish": "length"}, "None"),
        ({"meta": {"weight_version": "blue"}}, "weight version"),
        ({"meta": {"token_weight_versions": [[1, 1]]}}, "weight versions of"),
        ({"meta": {"finish_reason": None}}, "without a finish reason"),
        ({"meta": {"token_weight_versions": [[0, 10**15]]}}, "weight versions of"),
        ({"meta": {"token_weight_versions": [[0, -3], [0, 6]]}}, "weight version"),
        ({"meta": {"token_weight_versions": [[0, True]]}}, "weight version"),
        ({"meta": {"token_weight_versions": 5}}, "list of runs"),
        ({"meta": {"token_weight_versions": [[1 << 63, 3]]}}, "weight version"),
        ({"meta": {"weight_version": 1 << 63}}, "weight version"),
        ({"meta": {"weight_version": "9" * 30}}, "weight version"),
        ({"meta": {"finish_reason": {"type": "stop", "matched": 1 << 40}}}, "matched stop"),
        ({"meta": {"finish_reason": {"type": "stop", "matched": ["x"]}}}, "matched stop"),
        ({"ids": [1 << 31], "finish": "length"}, "output_ids"),
        ({"ids": [1 << 40], "finish": "length"}, "output_ids"),
        ({"ids": [-1], "finish": "length"}, "output_ids"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_proves_no_tokens_is_502_and_unrecorded(bench, caller, Reply, reply, says, stream):
    replies = iter([Reply(**reply), Reply("fine")])
    _, url = bench.engine(lambda prompt, body: next(replies))
    client = caller(url)
    session = client.create()
    answer = client.ask(session, [USER], stream=stream)
    assert answer.status_code == 502 or (stream and '"error"' in answer.text and "[DONE]" not in answer.text)
    assert says in answer.text
    state = client.state(session)
    assert (state["turns"], state["failed_turns"], state["in_flight"]) == ([], 1, 0)
    assert client.say(session, [USER])["content"] == "fine"


def test_an_empty_matched_text_ends_nothing(bench, caller, Reply):
    meta = {"finish_reason": {"type": "stop", "matched": ""}}
    _, url = bench.engine(lambda prompt, body: Reply("fine", meta=meta))
    client = caller(url)
    assert client.say(client.create(), [USER])["content"] == "fine"


def test_counters_that_64_bits_do_not_hold_are_left_out(bench, caller, Reply):
    meta = {"spec_verify_ct": (1 << 64) - 1, "cached_tokens": 2}
    _, url = bench.engine(lambda prompt, body: Reply("fine", meta=meta))
    client = caller(url)
    session = client.create()
    client.say(session, [USER])
    assert len(client.state(session)["turns"]) == 1
    assert len(client.samples(session)) == 1


@pytest.mark.parametrize("status", [400, 429, 500, 503])
def test_a_status_of_the_engine_passes_through_with_its_body(bench, caller, Reply, status):
    _, url = bench.engine(lambda prompt, body: Reply(status=status))
    client = caller(url)
    session = client.create()
    answer = client.ask(session, [USER])
    assert answer.status_code == status
    assert answer.json() == {"error": {"message": "scripted", "type": "x", "code": None}}
    assert client.state(session)["turns"] == []


@pytest.mark.parametrize("status", [204, 304, 301, 307, 600, 999])
def test_a_status_that_is_no_failure_is_502(caller, raw_server, status):
    head = f"HTTP/1.1 {status} x\r\nlocation: /elsewhere\r\nconnection: close\r\n\r\n"
    client = caller(raw_server(head.encode()), context_length=100)
    answer = client.ask(client.create(), [USER])
    assert answer.status_code == 502
    assert str(status) in answer.json()["error"]["message"]


def test_what_cannot_be_sent_on_of_a_failure_is_left_out(caller, raw_server):
    head = b"HTTP/1.1 429 x\r\nretry-after: \xff\xe9\r\ncontent-type: \xff\r\ncontent-length: 2\r\n\r\n{}"
    client = caller(raw_server(head), context_length=100)
    answer = client.ask(client.create(), [USER])
    assert answer.status_code == 429
    assert answer.json()["error"]["type"] == "rate_limit_error"
    assert "retry-after" not in answer.headers


def test_an_engine_that_is_not_there_is_502_and_one_that_is_silent_504(bench, caller, Reply):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    client = caller(f"http://127.0.0.1:{port}", context_length=100)
    assert client.ask(client.create(), [USER]).status_code == 502
    _, url = bench.engine(lambda prompt, body: Reply(hang=True))
    client = caller(url, answer_timeout_s=0.2)
    answer = client.ask(client.create(), [USER])
    assert answer.status_code == 504
    assert "waited 0.2 s" in answer.json()["error"]["message"]


def test_a_router_without_workers_gives_503_with_retry_after(bench, caller):
    _, router = bench.router(queue_timeout_s=0.1)
    client = caller(router, context_length=100)
    answer = client.ask(client.create(), [USER])
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"


def test_without_a_context_length_from_the_engine_the_models_own_counts(bench, caller):
    engine, url = bench.engine()
    engine.context_length = None
    client = caller(url)
    client.say(client.create(), [USER])
    prompt = len(engine.calls[0]["input_ids"])
    assert engine.calls[0]["sampling_params"]["max_new_tokens"] == 4096 - prompt


def test_sessions_go_on_when_one_of_two_engines_is_shut_down(bench, caller, Reply, until):
    engines = [bench.engine(lambda prompt, body: Reply("fine")) for _ in range(2)]
    _app, router = bench.router(*[url for _, url in engines])
    client = caller(router)
    session = client.create()
    messages = [USER]
    for turn in range(6):
        messages += [client.say(session, messages), USER]
        if turn == 2:
            bench._servers[0].stop()
    (sample,) = client.samples(session)
    assert sample.metadata["turns"] == 6
    assert sum(len(engine.calls) for engine, _ in engines) == 6
