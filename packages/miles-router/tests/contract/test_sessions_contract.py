"""Sessions over HTTP: creating, describing, sampling, deleting; every recorded token trained exactly once."""

import time
from collections import Counter

import httpx
import pytest

from miles_core.sample import Finish, Origin

USER = {"role": "user", "content": "hello there"}


def test_the_server_says_that_it_lives(contract):
    assert contract.http.get("/health").status_code == 200


def test_a_session_is_created_described_and_deleted(contract):
    session = contract.create(seed=7, metadata={"a": 1}, sampling={"temperature": 0.5})
    state = session.state()
    assert state["session_id"] == session.session_id
    assert (state["seed"], state["metadata"], state["sampling"]) == (7, {"a": 1}, {"temperature": 0.5})
    assert (state["turns"], state["tree"], state["in_flight"]) == ([], {}, 0)
    path = f"/sessions/{session.session_id}"
    assert contract.http.delete(path).status_code == 204
    assert contract.http.delete(path).status_code == 404
    assert contract.http.get(path).status_code == 404
    assert session.post("/v1/chat/completions", {"messages": [USER]}).status_code == 404


def test_a_body_is_optional_for_a_session(contract):
    assert contract.http.post("/sessions").status_code == 200


@pytest.mark.parametrize("spec", [{"odd": 1}, {"seed": "x"}, {"sampling": {"temperature": -1}}, [1], {"tools": [1]}])
def test_a_session_that_cannot_be_is_refused(contract, spec):
    assert contract.http.post("/sessions", json=spec).status_code == 400


def test_each_turn_records_one_log_probability_and_version_per_token(session):
    session.say([USER])
    (turn,) = session.state()["turns"]
    assert len(turn["ids"]) == len(turn["logprobs"]) == len(turn["weight_versions"]) > 0
    assert all(logprob <= 0 for logprob in turn["logprobs"])
    assert turn["request"] == [USER]


def test_every_recorded_token_is_trained_exactly_once(session):
    first = session.say([USER])["choices"][0]["message"]
    session.say([USER, first, {"role": "user", "content": "and then?"}])
    session.say([USER, first, {"role": "user", "content": "or else?"}])
    session.say([{"role": "user", "content": "something new"}])
    turns = session.state()["turns"]
    assert len(turns) == 4
    trained: Counter = Counter()
    for sample in session.samples():
        assert sample.ids[sample.loss_mask].tolist() == [
            i for span in sample.spans if span.origin is Origin.SAMPLED and span.trained for i in span.ids
        ]
        for span in sample.spans:
            if span.origin is Origin.SAMPLED and span.trained:
                trained[tuple(span.ids), tuple(round(p, 5) for p in span.logprobs)] += 1
    expected = Counter((tuple(t["ids"]), tuple(round(p, 5) for p in t["logprobs"])) for t in turns)
    assert trained == expected


def test_the_tree_tells_which_turn_continues_which(session):
    first = session.say([USER])["choices"][0]["message"]
    session.say([USER, first, {"role": "user", "content": "more"}])
    session.say([{"role": "user", "content": "new"}])
    tree = session.state()["tree"]
    assert sorted(tree.values(), key=str) == sorted([None, None, next(iter(tree))], key=str)


def test_the_same_request_again_is_another_answer_and_the_later_one_is_kept(session):
    session.say([USER])
    session.say([USER])
    assert len(session.state()["turns"]) == 2
    assert len(session.samples()) == 1


def test_an_idempotency_key_gives_the_same_answer(session):
    body = {"messages": [USER]}
    one, two = (session.ok("/v1/chat/completions", body, headers={"Idempotency-Key": "k"}) for _ in range(2))
    assert (one["id"], one["choices"]) == (two["id"], two["choices"])
    assert len(session.state()["turns"]) == 1
    other = session.post("/v1/chat/completions", {"messages": [USER, USER]}, headers={"Idempotency-Key": "k"})
    assert other.status_code == 409


def test_a_conversation_without_room_ends_at_its_length(contract):
    session = contract.create(max_seq_len=1)
    answer = session.say([USER])
    assert (answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]) == ("length", 0)
    (sample,) = session.samples()
    assert (sample.finish, sample.num_trainable) == (Finish.LENGTH, 0)


def test_samples_need_a_turn_and_their_names(contract, session):
    names = {"prompt_id": "p", "rollout_id": "r"}
    assert session.post("/samples", names).status_code == 422
    assert session.post("/samples", {"prompt_id": "p"}).status_code == 400
    assert contract.http.post("/sessions/none/samples", json=names).status_code == 404


def test_a_caller_that_leaves_leaves_nothing_running(contract, session):
    body = {"messages": [USER], "stream": True, "max_tokens": 8}
    path = f"/sessions/{session.session_id}/v1/chat/completions"
    headers = dict(contract.http.headers)
    with (
        httpx.Client(base_url=contract.http.base_url, headers=headers) as other,
        other.stream("POST", path, json=body) as answer,
    ):
        next(answer.iter_lines())
    give_up = time.monotonic() + 60
    while session.state()["in_flight"]:
        assert time.monotonic() < give_up
        time.sleep(0.02)


def test_the_token_is_asked_for(contract):
    if contract.token is None:
        pytest.skip("this server asks for no token")
    with contract.anonymous() as http:
        for path in ("/sessions", "/sessions/x/v1/chat/completions", "/sessions/x/v1/responses"):
            answer = http.post(path, json={})
            assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")
        assert http.post("/sessions", headers={"x-api-key": contract.token}).status_code == 200
