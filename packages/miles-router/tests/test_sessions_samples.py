"""What a server makes of a session: per leaf or turn, picked and processed by plug-ins, with experts and counters."""

import base64
import itertools
import time

import numpy as np
import pytest

from miles_core.errors import ConfigError, EngineError, PluginError, SessionError
from miles_router.sessions.experts import ExpertsFormat, experts_format, join_experts

USER = {"role": "user", "content": "hello"}
MORE = {"role": "user", "content": "more"}
HERE = f"{__name__}:"


def trained_texts(chat, samples) -> list[str]:
    return [chat.vocabulary.decode(sample.ids[sample.loss_mask].tolist()) for sample in samples]


def counting(Reply, **options):
    numbers = itertools.count()
    return lambda prompt, body: Reply(f"answer {next(numbers)}", **options)


def refusal(client, session) -> str:
    answer = client.http.post(f"/sessions/{session}/samples", json={"prompt_id": "p", "rollout_id": "r"})
    assert answer.status_code == 422, answer.text
    return answer.json()["error"]["message"]


def test_one_sample_a_turn_trains_each_turn_alone_after_all_that_came_before(bench, caller, Reply, chat):
    _, url = bench.engine(counting(Reply))
    client = caller(url, samples_per="turn")
    session = client.create()
    first = client.say(session, [USER])
    second = client.say(session, [USER, first, MORE])
    client.say(session, [USER, first, {"role": "user", "content": "other"}])
    client.say(session, [USER, first, MORE, second, USER])
    found = client.samples(session)
    assert sorted(trained_texts(chat, found)) == [f"answer {n}<|im_end|>" for n in range(4)]
    last = next(sample for sample in found if sample.metadata["leaf"] == "0.0.0")
    assert last.metadata["turns"] == 3
    assert [span.trained for span in last.spans if span.origin == "sampled"] == [False, False, True]
    assert chat.vocabulary.decode(last.ids.tolist()).count("answer") == 3
    assert sum(sample.metadata["counters"]["completion_tokens"] for sample in found) == sum(
        sample.num_trainable for sample in found
    )


def test_the_order_of_samples_and_who_trains_what_is_shared_do_not_depend_on_arrival(bench, caller, Reply, chat):
    ways = [{"role": "user", "content": f"way {n}"} for n in range(4)]

    def play(order):
        engine, url = bench.engine(lambda prompt, body: Reply(prompt.split("user\n")[-1][:5]))
        client = caller(url)
        session = client.create(seed=5)
        first = client.say(session, [USER])
        for way in order:
            client.say(session, [USER, first, way])
        seeds = {tuple(call["input_ids"]): call["sampling_params"]["sampling_seed"] for call in engine.calls}
        samples = client.samples(session)
        return seeds, [(s.ids.tolist(), s.loss_mask.tolist()) for s in samples]

    assert play(ways) == play(ways[::-1]) == play(ways[2:] + ways[:2])


def test_counters_are_summed_over_the_turns_that_a_sample_owns(bench, caller, Reply):
    metas = iter([{"spec_verify_ct": n, "spec_accept_rate": 0.5, "cached_tokens": n} for n in (3, 5, 7)])
    _, url = bench.engine(lambda prompt, body: Reply("ok", meta=next(metas)))
    client = caller(url)
    session = client.create()
    first = client.say(session, [USER])
    client.say(session, [USER, first, MORE])
    client.say(session, [USER, first, USER])
    found = client.samples(session)
    assert sum(sample.metadata["counters"]["spec_verify_ct"] for sample in found) == 15
    assert sorted(s.metadata["counters"]["cached_tokens"] for s in found)[0] in (5, 7)
    assert all("spec_accept_rate" not in sample.metadata["counters"] for sample in found)


def only_the_last(turns):
    return [turns[-1]]


def stranger(turns):
    return ["no turn"]


def without_messages(samples):
    return [sample.with_metadata(processed=True) for sample in samples]


def slow(samples):
    time.sleep(5)


def broken(samples):
    raise LookupError("no such thing")


def no_list(samples):
    return 3


async def waits(samples):
    return samples


def test_pickers_and_processors_of_the_user_are_called(bench, caller, Reply, chat):
    _, url = bench.engine(counting(Reply))
    client = caller(url, sample_picker=HERE + "only_the_last", sample_processors=(HERE + "without_messages",))
    session = client.create()
    client.say(session, [USER])
    client.say(session, [MORE])
    (sample,) = client.samples(session)
    assert trained_texts(chat, [sample]) == ["answer 1<|im_end|>"]
    assert sample.metadata["processed"] is True


def test_the_longest_leaf_is_the_one_with_most_sampled_tokens(bench, caller, Reply, chat):
    replies = iter([Reply("a"), Reply("much longer answer"), Reply("b")])
    _, url = bench.engine(lambda prompt, body: next(replies))
    client = caller(url, sample_picker="longest_leaf")
    session = client.create()
    for text in "xyz":
        client.say(session, [{"role": "user", "content": text}])
    (sample,) = client.samples(session)
    assert trained_texts(chat, [sample]) == ["much longer answer<|im_end|>"]
    assert sample.metadata["shorter_dropped"] == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sample_picker": "stranger"}, "turns of the session that have an answer"),
        ({"sample_processors": "broken"}, "LookupError: no such thing"),
        ({"sample_processors": "no_list"}, "expected a list of samples, found int"),
        ({"sample_processors": "slow"}, "waited 0.3 s for sample processor"),
    ],
)
def test_a_plug_in_that_fails_is_the_reason_of_a_422_and_others_go_on(bench, caller, Reply, options, says):
    _, url = bench.engine(counting(Reply))
    (name, attribute) = next(iter(options.items()))
    value = HERE + attribute if name == "sample_picker" else (HERE + attribute,)
    client = caller(url, plugin_timeout_s=0.3, **{name: value})
    session = client.create()
    client.say(session, [USER])
    message = refusal(client, session)
    assert says in message
    assert attribute in message
    assert client.say(session, [MORE])["content"] == "answer 1"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sample_picker": "lives"}, "Built in: leaves, all_leaves, longest_leaf"),
        ({"sample_processors": (HERE + "waits",)}, "async"),
        ({"sample_processors": (HERE + "nothing",)}, "nothing"),
        ({"matcher": "loose"}, "Built in: loose_tool_call"),
    ],
)
def test_a_plug_in_that_cannot_be_called_is_found_before_the_server_starts(bench, options, says):
    from miles_router.sessions.app import create_session_app
    from miles_router.sessions.config import SessionServerConfig

    with pytest.raises(PluginError, match=says):
        create_session_app(
            SessionServerConfig(engine_url="http://x", model_dir=bench.model_dir, **options), chat=bench.chat
        )


def by_first_letter(message) -> str:
    return f"{message['role']} {message['content'][:1]}"


def test_a_matcher_of_the_user_decides_what_is_the_same_history(bench, caller, Reply):
    _, url = bench.engine(counting(Reply))
    client = caller(url, matcher=HERE + "by_first_letter")
    session = client.create()
    client.say(session, [USER])
    client.say(session, [{"role": "user", "content": "h, said again"}, {"role": "assistant", "content": "a"}, MORE])
    assert client.state(session)["tree"] == {"0": None, "0.0": "0"}


LAYERS, TOP_K = 3, 2


def payload(rows, start=0) -> str:
    """Experts that tell their position and layer: `[rows, LAYERS, TOP_K]` as SGLang writes them."""
    chosen = np.array([[[(start + r) % 200, layer] for layer in range(LAYERS)] for r in range(rows)], dtype="<i4")
    return base64.b64encode(chosen.tobytes()).decode()


@pytest.mark.parametrize("stream", [False, True])
def test_routed_experts_follow_their_tokens_and_no_client_sees_them(bench, caller, Reply, chat, stream):
    def script(prompt, body):
        assert body["return_routed_experts"] is True
        ids = [*chat.vocabulary.encode("ok")[0], chat.vocabulary.id_of("<|im_end|>")]
        return Reply(ids=ids, meta={"routed_experts": payload(len(body["input_ids"]) + len(ids) - 1)})

    engine, url = bench.engine(script)
    client = caller(url, return_routed_experts=True, experts_top_k=TOP_K)
    session = client.create()
    ask = client.stream if stream else lambda *args: client.ask(*args).json()
    assert "routed_experts" not in str(ask(session, [USER]))
    answer = {"role": "assistant", "content": "ok"}
    for last in (MORE, USER):
        ask(session, [USER, answer, last])
    assert "routed_experts" not in str(client.state(session))
    for sample in client.samples(session):
        rows = sample.num_tokens - 1
        assert sample.routing.shape == (rows, LAYERS, TOP_K)
        assert sample.routing.dtype == np.uint8
        assert sample.routing[:, 0, 0].tolist() == [r % 200 for r in range(rows)]
        assert sample.routing[:, 2, 1].tolist() == [2] * rows
    assert len(engine.calls) == 3


def test_experts_that_do_not_come_or_do_not_fit_are_502(bench, caller, Reply):
    replies = iter([Reply("a"), Reply("a", meta={"routed_experts": "AAAA"}), Reply("a", meta={"routed_experts": "?"})])
    _, url = bench.engine(lambda prompt, body: next(replies))
    client = caller(url, return_routed_experts=True, experts_top_k=TOP_K)
    session = client.create()
    said = [client.ask(session, [USER]) for _ in range(3)]
    assert [answer.status_code for answer in said] == [502, 502, 502]
    assert ["found none" in said[0].text, "3 bytes" in said[1].text, "base64" in said[2].text] == [True] * 3
    assert client.state(session)["turns"] == []


def test_the_experts_of_turns_are_joined_where_the_next_turn_goes_on():
    def rows(first, count):
        return np.arange(first, first + count, dtype=np.uint8).reshape(count, 1, 1)

    # The first turn holds 5 positions, of which the last gave way with the stop that it was for.
    joined = join_experts([(0, rows(0, 5)), (4, rows(104, 6))], num_tokens=11)
    assert joined[:, 0, 0].tolist() == [0, 1, 2, 3, 104, 105, 106, 107, 108, 109]
    assert join_experts([(0, None), (4, None)], num_tokens=11) is None
    with pytest.raises(SessionError, match="1 of 2 turns"):
        join_experts([(0, rows(0, 5)), (4, None)], num_tokens=11)
    with pytest.raises(SessionError, match="position 4"):
        join_experts([(0, rows(0, 4)), (4, rows(4, 5))], num_tokens=11)
    with pytest.raises(SessionError, match="position 0 on are missing"):
        join_experts([(0, rows(0, 4)), (5, rows(5, 5))], num_tokens=11)


def test_experts_are_read_in_the_smallest_dtype_that_fits(model_dir, tmp_path):
    large = base64.b64encode(np.array([[[300, 1]]], dtype="<i4").tobytes()).decode()
    assert ExpertsFormat(top_k=2).read(large, rows=1).dtype == np.uint16
    small = base64.b64encode(bytes([1, 2, 3, 4])).decode()
    assert ExpertsFormat(top_k=2, dtype="uint8").read(small, rows=2).tolist() == [[[1, 2]], [[3, 4]]]
    negative = base64.b64encode(np.array([-1, 1], dtype="<i4").tobytes()).decode()
    with pytest.raises(EngineError, match="at least 0"):
        ExpertsFormat(top_k=2).read(negative, rows=1)
    with pytest.raises(ConfigError, match="experts_top_k"):
        experts_format(model_dir, top_k=None, dtype="int32")
    (tmp_path / "config.json").write_text('{"text_config": {"num_experts_per_tok": 8}}')
    assert experts_format(tmp_path, top_k=None, dtype="int32").top_k == 8
