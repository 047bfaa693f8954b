"""The main path of a session: create, chat over several turns, samples, delete."""

import json

import httpx
import numpy as np
import pytest

from miles_core import sample_codec, seeds
from miles_core.sample import Finish, Origin
from miles_router.sessions.matchers import MATCHERS
from miles_router.sessions.request import tools_key
from miles_router.sessions.tree import TurnTree, request_digest

USER = {"role": "user", "content": "hello there"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def seed_of(seed, messages, *, depth=0, repeat=0):
    """The seed of a turn, from what was asked."""
    keys = TurnTree(MATCHERS["loose_tool_call"]).keys(messages)
    return seeds.derive(seed, "turn", depth, request_digest(keys, tools_key(())).hex(), repeat)


def create(client, **spec) -> str:
    answer = client.post("/sessions", json=spec)
    assert answer.status_code == 200, answer.text
    return answer.json()["session_id"]


def ask(client, session, messages, **fields) -> httpx.Response:
    headers = fields.pop("headers", None)
    return client.post(
        f"/sessions/{session}/v1/chat/completions", json={"messages": messages, **fields}, headers=headers
    )


def say(client, session, messages, **fields):
    answer = ask(client, session, messages, **fields)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]


def samples(client, session):
    answer = client.post(f"/sessions/{session}/samples", json={"prompt_id": "0-1", "rollout_id": "1/0-1/0"})
    assert answer.status_code == 200, answer.text
    return sample_codec.decode(answer.content)


def test_a_two_turn_session_gives_one_sample_of_exactly_the_sampled_tokens(bench, Reply, chat, logprob_of):
    texts = iter(["first answer", "second"])
    engine, url = bench.engine(lambda prompt, body: Reply(next(texts)))
    engine.version = "4"
    _, sessions = bench.sessions(url)
    client = bench.client(sessions)
    session = create(client, seed=11, metadata={"run": "a"})
    messages = [USER]
    messages += [say(client, session, messages), {"role": "user", "content": "and then?"}]
    assert say(client, session, messages)["content"] == "second"

    (sample,) = samples(client, session)
    sampled = [span for span in sample.spans if span.origin is Origin.SAMPLED]
    stop = chat.vocabulary.id_of("<|im_end|>")
    expected = [(*chat.vocabulary.encode(text)[0], stop) for text in ("first answer", "second")]
    assert [span.ids for span in sampled] == expected
    assert [span.logprobs for span in sampled] == [tuple(logprob_of(i) for i in ids) for ids in expected]
    assert {v for span in sampled for v in span.weight_versions} == {4}
    whole = "<|im_start|>user\nhello there<|im_end|>\n<|im_start|>assistant\nfirst answer<|im_end|>\n"
    whole += "<|im_start|>user\nand then?<|im_end|>\n<|im_start|>assistant\nsecond<|im_end|>"
    assert chat.vocabulary.decode(sample.ids.tolist()) == whole
    assert sample.num_trainable == sum(map(len, expected))
    assert (sample.finish, sample.prompt_id, sample.rollout_id) == (Finish.STOP, "0-1", "1/0-1/0")
    assert sample.metadata["tito"] == {"hard": 0, "soft": 0}
    assert sample.metadata["turns"] == 2
    assert sample.metadata["session"] == {"run": "a"}
    assert [m["role"] for m in sample.messages] == ["user", "assistant", "user", "assistant"]


def test_the_second_prompt_is_the_first_prompt_plus_what_was_sampled_plus_the_suffix(bench, Reply, chat):
    # 'he' + 'llo' spelled in single bytes: decoding and encoding would not give these ids back.
    drifting = [chat.vocabulary.encode(c)[0][0] for c in "hello"]
    assert chat.vocabulary.encode("hello")[0] != drifting
    stop = chat.vocabulary.id_of("<|im_end|>")
    replies = iter([Reply(ids=[*drifting, stop]), Reply("done")])
    engine, url = bench.engine(lambda prompt, body: next(replies))
    client = bench.client(bench.sessions(url)[1])
    session = create(client)
    first = say(client, session, [USER])
    say(client, session, [USER, first, USER])
    one, two = (call["input_ids"] for call in engine.calls)
    assert two[: len(one) + 6] == [*one, *drifting, stop]
    (sample,) = samples(client, session)
    assert sample.metadata["tito"] == {"hard": 0, "soft": 1}
    assert sample.num_trainable == 6 + len(engine.ids_of(Reply("done")))


def test_the_engine_is_asked_with_ids_logprobs_seed_stops_and_the_sessions_key(bench, Reply, chat):
    engine, url = bench.engine()
    client = bench.client(bench.sessions(url)[1])
    session = create(client, seed=5, sampling={"temperature": 0.7, "top_p": 0.9, "top_k": 20, "max_tokens": 9})
    say(client, session, [USER], temperature=0.1, top_p=0.5, top_k=3, seed=99, max_tokens=30)
    call, headers = engine.calls[0], engine.headers[0]
    assert call["return_logprob"] is True
    assert call["input_ids"] == list(chat.begin([USER]).ids)
    assert call["sampling_params"] == {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 20,
        "max_new_tokens": 9,
        "sampling_seed": seed_of(5, [USER]),
        "stop_token_ids": list(chat.stop_token_ids),
    }
    assert headers["x-smg-routing-key"] == session


def test_a_smaller_max_tokens_of_the_request_wins_and_unpinned_sampling_is_the_requests(bench):
    engine, url = bench.engine()
    client = bench.client(bench.sessions(url)[1])
    session = create(client, sampling={"max_tokens": 50})
    ask(client, session, [USER], max_tokens=2, temperature=0.25)
    asked = engine.calls[0]["sampling_params"]
    assert (asked["max_new_tokens"], asked["temperature"], asked["top_p"], asked["top_k"]) == (2, 0.25, 1.0, -1)


def test_seeds_follow_what_was_asked_and_how_often_and_a_failed_attempt_takes_none(bench, Reply):
    replies = iter([Reply(status=500), Reply("a"), Reply("b"), Reply("c")])
    engine, url = bench.engine(lambda prompt, body: next(replies))
    client = bench.client(bench.sessions(url)[1])
    session = create(client, seed=7)
    assert ask(client, session, [USER]).status_code == 500
    first = say(client, session, [USER])
    say(client, session, [USER])
    say(client, session, [USER, first, USER])
    asked = [call["sampling_params"]["sampling_seed"] for call in engine.calls]
    assert asked == [
        seed_of(7, [USER]),
        seed_of(7, [USER]),
        seed_of(7, [USER], repeat=1),
        seed_of(7, [USER, first, USER], depth=1),
    ]


def test_tools_reach_the_template_and_calls_come_back_in_openais_shape(bench, Reply):
    call = '<tool_call>\n{"name": "look", "arguments": {"at": "Paris"}}\n</tool_call>'
    replies = iter([Reply("I look." + "\n" + call), Reply("fine")])
    engine, url = bench.engine(lambda prompt, body: next(replies))
    client = bench.client(bench.sessions(url)[1])
    session = create(client)
    answer = ask(client, session, [USER], tools=[TOOL]).json()["choices"][0]
    (found,) = answer["message"]["tool_calls"]
    assert answer["finish_reason"] == "tool_calls"
    assert (found["type"], found["function"]["name"]) == ("function", "look")
    assert json.loads(found["function"]["arguments"]) == {"at": "Paris"}
    # A client that writes the arguments anew still continues the same turn.
    found["function"]["arguments"] = '{ "at" :"Paris"}'
    result = {"role": "tool", "tool_call_id": found["id"], "content": "fine weather"}
    say(client, session, [USER, answer["message"], result], tools=[TOOL])
    state = client.get(f"/sessions/{session}").json()
    assert state["tree"] == {"0": None, "0.0": "0"}
    assert [turn["extends"] for turn in state["turns"]] == [False, True]
    assert state["mismatch"]["0.0"]["hard"] == 0
    prompt = bench.chat.vocabulary.decode(engine.calls[1]["input_ids"])
    assert prompt.endswith(
        call + "<|im_end|>\n<|im_start|>user\n<tool_response>\nfine weather\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_prompt_that_leaves_no_room_is_an_empty_length_turn_and_ends_the_trajectory(bench, Reply, chat):
    engine, url = bench.engine(lambda prompt, body: Reply("abc"))
    client = bench.client(bench.sessions(url)[1])
    start = len(chat.begin([USER]).ids)
    session = create(client, max_seq_len=start + 10)
    first = say(client, session, [USER])
    long = {"role": "user", "content": "x" * 50}
    answer = ask(client, session, [USER, first, long]).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["choices"][0]["message"]["content"] == ""
    assert answer["usage"]["completion_tokens"] == 0
    assert len(engine.calls) == 1
    (sample,) = samples(client, session)
    assert sample.finish is Finish.LENGTH
    assert sample.num_tokens == start + len(engine.ids_of(Reply("abc")))


def test_a_first_prompt_over_the_context_gives_a_sample_without_tokens(bench):
    engine, url = bench.engine()
    engine.context_length = 5
    client = bench.client(bench.sessions(url)[1])
    session = create(client)
    assert ask(client, session, [USER]).json()["choices"][0]["finish_reason"] == "length"
    (sample,) = samples(client, session)
    assert (sample.num_tokens, sample.finish) == (0, Finish.LENGTH)
    assert engine.calls == []


def test_the_answer_is_cut_at_the_room_that_is_left(bench, Reply, chat):
    engine, url = bench.engine(lambda prompt, body: Reply("abcdefghijkl"))
    client = bench.client(bench.sessions(url)[1])
    session = create(client, max_seq_len=len(chat.begin([USER]).ids) + 3)
    answer = ask(client, session, [USER]).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert engine.calls[0]["sampling_params"]["max_new_tokens"] == 3
    (sample,) = samples(client, session)
    assert (sample.finish, sample.num_trainable) == (Finish.LENGTH, 3)


@pytest.mark.parametrize(("policy", "status"), [("branch", 200), ("close", 200), ("refuse", 409)])
def test_a_truncated_turn_is_continued_as_the_server_was_told(bench, Reply, policy, status):
    replies = iter([Reply("half a", finish="length"), Reply("rest")])
    _, url = bench.engine(lambda prompt, body: next(replies))
    client = bench.client(bench.sessions(url, after_length=policy)[1])
    session = create(client)
    first = say(client, session, [USER])
    answer = ask(client, session, [USER, first, USER])
    assert answer.status_code == status
    found = samples(client, session)
    finishes = [sample.finish for sample in found]
    if policy == "close":
        (sample,) = found
        # The end-of-turn tokens that the model did not sample are there and are not trained.
        text = bench.chat.vocabulary.decode(sample.ids[sample.loss_mask].tolist())
        assert text == "half arest<|im_end|>"
        assert finishes == [Finish.STOP]
    elif policy == "branch":
        assert finishes == [Finish.LENGTH, Finish.STOP]
        assert [s.metadata["turns"] for s in found] == [1, 1]
        texts = [bench.chat.vocabulary.decode(s.ids[s.loss_mask].tolist()) for s in found]
        assert texts == ["half a", "rest<|im_end|>"]
        assert found[0].metadata["not_extendable"] == 1
    else:
        assert finishes == [Finish.LENGTH]


def test_weight_versions_are_those_of_each_token(bench, Reply):
    meta = {"token_weight_versions": [[3, 2], [4, 2]]}
    _engine, url = bench.engine(lambda prompt, body: Reply(ids=[10, 11, 12, 13], finish="length", meta=meta))
    client = bench.client(bench.sessions(url)[1])
    session = create(client)
    say(client, session, [USER])
    (sample,) = samples(client, session)
    assert sample.weight_versions[sample.loss_mask].tolist() == [3, 3, 4, 4]
    assert np.allclose(sample.logprobs[sample.loss_mask], [-3 / 16, -4 / 16, -5 / 16, -6 / 16])


def test_usage_counts_are_the_engines_tokens_and_logprobs_come_when_asked_for(bench, Reply, chat, logprob_of):
    _, url = bench.engine(lambda prompt, body: Reply("ab"))
    client = bench.client(bench.sessions(url)[1])
    answer = ask(client, create(client), [USER], logprobs=True).json()
    prompt = len(chat.begin([USER]).ids)
    ids = [*chat.vocabulary.encode("ab")[0], chat.vocabulary.id_of("<|im_end|>")]
    assert answer["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": len(ids),
        "total_tokens": prompt + len(ids),
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    entries = answer["choices"][0]["logprobs"]["content"]
    assert [entry["logprob"] for entry in entries] == [logprob_of(i) for i in ids]
    assert "".join(entry["token"] for entry in entries) == "ab<|im_end|>"


def test_a_deleted_session_is_gone_and_what_ran_in_it_is_aborted(bench, Reply, until):
    engine, url = bench.engine(lambda prompt, body: Reply(hang=True))
    app, sessions = bench.sessions(url)
    client = bench.client(sessions)
    session = create(client)
    import threading

    answers = []
    other = bench.client(sessions)
    thread = threading.Thread(target=lambda: answers.append(ask(other, session, [USER])))
    thread.start()
    until(lambda: engine.active == 1, "the call to arrive")
    assert client.delete(f"/sessions/{session}").status_code == 204
    thread.join(5)
    assert answers[0].status_code == 404
    until(lambda: engine.active == 0, "the engine's call to end")
    assert client.delete(f"/sessions/{session}").status_code == 404
    assert client.get(f"/sessions/{session}").status_code == 404
    assert len(app.service.store) == 0


def test_a_session_that_nobody_used_for_its_ttl_is_dropped(bench, until):
    _, url = bench.engine()
    app, sessions = bench.sessions(url, ttl_s=0.2, sweep_s=0.05)
    client = bench.client(sessions)
    session = create(client)
    assert client.get(f"/sessions/{session}").status_code == 200
    until(lambda: len(app.service.store) == 0, "the sweep")
    answer = client.get(f"/sessions/{session}")
    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "not_found_error"


def test_the_caps_on_sessions_and_turns_are_answered_with_their_status(bench):
    _, url = bench.engine()
    client = bench.client(bench.sessions(url, max_sessions=2, max_turns=1)[1])
    session = create(client)
    create(client)
    assert client.post("/sessions").status_code == 429
    say(client, session, [USER])
    answer = ask(client, session, [USER])
    assert answer.status_code == 409
    assert "1 turns" in answer.json()["error"]["message"]


def test_samples_of_a_session_without_turns_are_refused_with_the_reason(bench):
    _, url = bench.engine()
    client = bench.client(bench.sessions(url)[1])
    answer = client.post(f"/sessions/{create(client)}/samples", json={"prompt_id": "p", "rollout_id": "r"})
    assert answer.status_code == 422
    assert "no recorded turn" in answer.json()["error"]["message"]


def test_the_token_is_asked_for_on_every_call(bench):
    _, url = bench.engine()
    _, sessions = bench.sessions(url, token="s3cret")
    assert bench.client(sessions).post("/sessions").status_code == 401
    client = bench.client(sessions, headers={"Authorization": "Bearer s3cret"})
    session = create(client)
    say(client, session, [USER])
    assert bench.client(sessions).get(f"/sessions/{session}").status_code == 401
