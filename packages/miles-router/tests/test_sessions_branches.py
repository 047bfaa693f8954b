"""Branches of a session: retries, races, sub-agents, idempotency; no answer is lost and none is trained twice."""

import asyncio
import itertools
import threading
from collections import Counter

import httpx
import pytest

from miles_core.sample import Finish

USER = {"role": "user", "content": "hello"}
MORE = {"role": "user", "content": "more"}


def trained_texts(chat, samples) -> list[str]:
    return [chat.vocabulary.decode(sample.ids[sample.loss_mask].tolist()) for sample in samples]


def counting(Reply, **options):
    numbers = itertools.count()
    return lambda prompt, body: Reply(f"answer {next(numbers)}", **options)


def test_a_turn_shared_by_two_leaves_is_trained_in_one_and_masked_in_the_other(bench, caller, Reply, chat):
    _, url = bench.engine(counting(Reply))
    client = caller(url)
    session = client.create()
    first = client.say(session, [USER])
    client.say(session, [USER, first, MORE])
    client.say(session, [USER, first, {"role": "user", "content": "other"}])
    one, two = client.samples(session)
    # Which of the two comes first depends on what was asked, not on when.
    last = {"0.0": "answer 1<|im_end|>", "0.1": "answer 2<|im_end|>"}
    leaves = [s.metadata["leaf"] for s in (one, two)]
    assert sorted(leaves) == ["0.0", "0.1"]
    assert trained_texts(chat, [one, two]) == ["answer 0<|im_end|>" + last[leaves[0]], last[leaves[1]]]
    # The other leaf still carries the shared turn, complete with its log-probabilities.
    assert "answer 0<|im_end|>" in chat.vocabulary.decode(two.ids.tolist())
    assert [span.trained for span in two.spans if span.origin == "sampled"] == [False, True]


def test_a_retried_answer_is_dropped_unless_it_was_continued(bench, caller, Reply, chat):
    _, url = bench.engine(counting(Reply))
    client = caller(url)
    session = client.create()
    client.say(session, [USER])
    second = client.say(session, [USER])
    client.say(session, [USER, second, MORE])
    (sample,) = client.samples(session)
    assert trained_texts(chat, [sample]) == ["answer 1<|im_end|>answer 2<|im_end|>"]
    assert sample.metadata["retries_dropped"] == 1
    assert client.state(session)["leaves"] == ["0", "1.0"]


def test_retries_are_kept_when_the_server_is_told_so(bench, caller, Reply, chat):
    _, url = bench.engine(counting(Reply))
    client = caller(url, keep_retries=True)
    session = client.create()
    client.say(session, [USER])
    client.say(session, [USER])
    assert trained_texts(chat, client.samples(session)) == ["answer 0<|im_end|>", "answer 1<|im_end|>"]


def test_a_rewritten_history_is_a_branch_of_its_own(bench, caller, Reply, chat):
    _, url = bench.engine(counting(Reply))
    client = caller(url)
    session = client.create()
    client.say(session, [USER])
    client.say(session, [USER, {"role": "assistant", "content": "I never said that"}, MORE])
    one, two = client.samples(session)
    assert trained_texts(chat, [one, two]) == ["answer 0<|im_end|>", "answer 1<|im_end|>"]
    assert client.state(session)["tree"] == {"0": None, "1": None}
    assert "I never said that" in chat.vocabulary.decode(two.ids[: two.prompt_length].tolist())


def test_other_tools_make_another_branch(bench, caller, Reply):
    _engine, url = bench.engine(counting(Reply))
    client = caller(url)
    session = client.create()
    first = client.say(session, [USER])
    tool = {"type": "function", "function": {"name": "look", "description": "d"}}
    client.say(session, [USER, first, MORE], tools=[tool])
    same = {"function": {"description": "d", "name": "look"}, "type": "function"}
    again = client.say(session, [USER], tools=[tool])
    client.say(session, [USER, again, MORE], tools=[same])
    assert client.state(session)["tree"] == {"0": None, "1": None, "2": None, "2.0": "2"}


def test_tools_given_with_the_session_serve_requests_that_bring_none(bench, caller, Reply, chat):
    tool = {"type": "function", "function": {"name": "look"}}
    engine, url = bench.engine(counting(Reply))
    client = caller(url)
    session = client.create(tools=[tool])
    first = client.say(session, [USER])
    client.say(session, [USER, first, MORE], tools=[tool])
    assert "Tools:" in chat.vocabulary.decode(engine.calls[0]["input_ids"])
    assert client.state(session)["tree"] == {"0": None, "0.0": "0"}


def test_turns_that_race_from_one_parent_both_exist(bench, caller, Reply, chat):
    _, url = bench.engine(counting(Reply, delay_s=0.1))
    client = caller(url)
    session = client.create()
    first = client.say(session, [USER])

    async def main():
        async with httpx.AsyncClient(base_url=client.http.base_url, timeout=20) as http:
            bodies = [{"messages": [USER, first, {"role": "user", "content": f"way {n}"}]} for n in range(8)]
            path = f"/sessions/{session}/v1/chat/completions"
            return await asyncio.gather(*(http.post(path, json=body) for body in bodies))

    answers = {a.json()["choices"][0]["message"]["content"] for a in asyncio.run(main())}
    assert answers == {f"answer {n}" for n in range(1, 9)}
    state = client.state(session)
    assert state["tree"] == {"0": None} | {f"0.{n}": "0" for n in range(8)}
    samples = client.samples(session)
    assert len(samples) == 8
    trained = Counter("".join(trained_texts(chat, samples)).split("<|im_end|>")[:-1])
    assert trained == {f"answer {n}": 1 for n in range(9)}


def test_an_idempotency_key_gives_the_recorded_turn_and_refuses_another_request(bench, caller, Reply):
    engine, url = bench.engine(counting(Reply))
    client = caller(url)
    session = client.create()
    key = {"Idempotency-Key": "k1"}
    one = client.ask(session, [USER], headers=key).json()
    two = client.ask(session, [USER], headers=key).json()
    assert one["choices"] == two["choices"]
    assert one["id"] == two["id"]
    assert len(engine.calls) == 1
    assert client.ask(session, [MORE], headers=key).status_code == 409
    assert client.say(session, [USER])["content"] == "answer 1"


def test_a_key_whose_request_failed_may_be_used_again(bench, caller, Reply):
    replies = iter([Reply(status=503), Reply("fine")])
    _, url = bench.engine(lambda prompt, body: next(replies))
    client = caller(url)
    session = client.create()
    key = {"Idempotency-Key": "k1"}
    assert client.ask(session, [USER], headers=key).status_code == 503
    assert client.ask(session, [USER], headers=key).json()["choices"][0]["message"]["content"] == "fine"


@pytest.mark.parametrize("stream", [False, True])
def test_a_retry_after_a_dropped_connection_joins_the_call_under_way(bench, caller, Reply, until, stream):
    engine, url = bench.engine(counting(Reply, delay_s=0.0 if stream else 0.6, step_s=0.05 if stream else 0.0))
    client = caller(url)
    session = client.create()
    path = client.url(session)
    if stream:
        with httpx.stream("POST", path, json={"messages": [USER], "stream": True}, timeout=10) as answer:
            next(answer.iter_raw())
    else:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(path, json={"messages": [USER]}, timeout=0.2)
    if stream:
        text = "".join(c["choices"][0]["delta"].get("content", "") for c in client.stream(session, [USER]))
    else:
        text = client.say(session, [USER])["content"]
    assert text == "answer 0"
    assert len(engine.calls) == 1
    (sample,) = client.samples(session)
    assert sample.metadata["retries_dropped"] == sample.metadata["undelivered_dropped"] == 0


def test_a_retry_that_comes_after_the_answer_was_recorded_gets_it_too(bench, caller, Reply, until):
    engine, url = bench.engine(counting(Reply, delay_s=0.3))
    client = caller(url)
    session = client.create()
    path = client.url(session)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(path, json={"messages": [USER]}, timeout=0.1)
    until(lambda: client.state(session)["turns"], "the turn to be recorded")
    assert client.say(session, [USER])["content"] == "answer 0"
    assert len(engine.calls) == 1


def test_an_answer_that_nobody_took_is_no_part_of_the_samples(bench, caller, Reply, until, chat):
    _engine, url = bench.engine(counting(Reply, delay_s=0.2))
    client = caller(url)
    session = client.create()
    first = client.say(session, [USER])
    path = client.url(session)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(path, json={"messages": [USER, first, MORE]}, timeout=0.1)
    until(lambda: len(client.state(session)["turns"]) == 2, "the turn to be recorded")
    (sample,) = client.samples(session)
    assert trained_texts(chat, [sample]) == ["answer 0<|im_end|>"]
    assert sample.metadata["undelivered_dropped"] == 1
    assert sample.finish is Finish.STOP


def test_the_official_clients_own_retry_gets_the_turn_that_was_recorded(bench, caller, Reply):
    engine, url = bench.engine(counting(Reply))
    client = caller(url)
    session = client.create()
    client.say(session, [USER])
    # Its answer was sent, but lost on the way: only the header tells that this is the same call.
    again = client.ask(session, [USER], headers={"x-stainless-retry-count": "1"}).json()
    assert again["choices"][0]["message"]["content"] == "answer 0"
    assert len(engine.calls) == 1


def test_identical_calls_side_by_side_are_two_answers(bench, caller, Reply):
    engine, url = bench.engine(counting(Reply, delay_s=0.2))
    client = caller(url)
    session = client.create()
    answers = []
    path = client.url(session)
    threads = [
        threading.Thread(target=lambda: answers.append(httpx.post(path, json={"messages": [USER]}, timeout=20).json()))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert {a["choices"][0]["message"]["content"] for a in answers} == {"answer 0", "answer 1"}
    seeds = {call["sampling_params"]["sampling_seed"] for call in engine.calls}
    assert len(seeds) == 2
