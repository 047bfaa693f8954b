import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_cli.report.samples_file import SamplesFile, read_samples, token_pieces
from miles_cli.report.summary import summarise, write_summary
from miles_cli.report.timeline import place_steps
from miles_core.errors import DataError
from miles_core.sample import Finish, Group, Origin, Sample, Span


def decode(ids):
    return bytes(ids).decode("utf-8", "replace")


def sampled(text, **options):
    ids = tuple(text.encode())
    return Span(
        origin=Origin.SAMPLED, ids=ids, logprobs=(-0.25,) * len(ids), weight_versions=(3,) * len(ids), **options
    )


def sample(*spans, **options):
    return Sample(**{"prompt_id": "0-7", "rollout_id": "3/0-7/0", "spans": spans, "finish": Finish.STOP, **options})


def test_a_sample_is_a_readable_line(tmp_path):
    spans = (Span(origin=Origin.PROMPT, ids=tuple(b"hi ")), sampled("ok"), sampled("no", trained=False))
    messages = ({"role": "user", "content": "hi"},)
    group = Group(prompt_id="0-7", samples=(sample(*spans, reward=0.5, messages=messages, metadata={"turns": 2}),))
    path = SamplesFile(tmp_path / "samples", decode=decode).write(3, [group])
    assert path == tmp_path / "samples" / "step-0003.jsonl"
    (line,) = read_samples(path)
    versions = [3, 3]
    assert line == {
        "step": 3,
        "prompt_id": "0-7",
        "rollout_id": "3/0-7/0",
        "reward": 0.5,
        "finish": "stop",
        "error": None,
        "num_tokens": 7,
        "messages": [{"role": "user", "content": "hi"}],
        "metadata": {"turns": 2},
        "spans": [
            {"origin": "prompt", "trained": False, "text": "hi ", "ids": [104, 105, 32]},
            {
                "origin": "sampled",
                "trained": True,
                "text": "ok",
                "ids": [111, 107],
                "pieces": ["o", "k"],
                "logprobs": [-0.25, -0.25],
                "weight_versions": versions,
            },
            {
                "origin": "sampled",
                "trained": False,
                "text": "no",
                "ids": [110, 111],
                "pieces": ["n", "o"],
                "logprobs": [-0.25, -0.25],
                "weight_versions": versions,
            },
        ],
    }


def test_nothing_of_an_aborted_sample_is_marked_as_trained(tmp_path):
    aborted = sample(sampled("half"), finish=Finish.ABORTED, error="the agent raised ValueError")
    path = SamplesFile(tmp_path, decode=decode).write(0, [Group(prompt_id="0-7", samples=(aborted,))])
    (line,) = read_samples(path)
    assert line["error"] == "the agent raised ValueError"
    assert [span["trained"] for span in line["spans"]] == [False]


def test_text_with_unusual_line_separators_stays_one_line(tmp_path):
    one = sample(sampled("a\u2028b\nc"))
    path = SamplesFile(tmp_path, decode=decode).write(0, [Group(prompt_id="0-7", samples=(one, one))])
    assert [line["spans"][0]["text"] for line in read_samples(path)] == ["a\u2028b\nc"] * 2


def test_writing_a_step_again_replaces_its_file(tmp_path):
    file = SamplesFile(tmp_path, decode=decode)
    group = Group(prompt_id="0-7", samples=(sample(sampled("a")),))
    file.write(1, [group, group])
    path = file.write(1, [group])
    assert len(read_samples(path)) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["step-0001.jsonl"]


def test_a_broken_samples_file_is_named(tmp_path):
    (tmp_path / "step-0000.jsonl").write_text("{}\n{\n")
    with pytest.raises(DataError, match=r"step-0000\.jsonl, line 2"):
        read_samples(tmp_path / "step-0000.jsonl")


def test_a_character_of_several_tokens_belongs_to_the_last():
    assert token_pieces(list("é!".encode()), decode=decode) == ["", "é", "!"]
    assert token_pieces(list("🙂".encode()), decode=decode) == ["", "", "", "🙂"]


def test_a_space_that_the_tokenizer_drops_at_the_start_of_a_text_is_kept_between_tokens():
    words = {1: "▁Hello", 2: "▁world", 3: "!"}

    def sentencepiece(ids):
        return "".join(words[i] for i in ids).replace("▁", " ").removeprefix(" ")

    assert token_pieces([1, 2, 3], decode=sentencepiece) == ["Hello", " world", "!"]


@given(st.text(max_size=40))
def test_pieces_join_to_the_text(text):
    ids = list(text.encode())
    pieces = token_pieces(ids, decode=decode)
    assert len(pieces) == len(ids)
    assert "".join(pieces) == text


@given(st.binary(max_size=40))
def test_every_token_has_a_piece_even_where_bytes_are_no_text(data):
    assert len(token_pieces(list(data), decode=decode)) == len(data)


def line(step, started, *, rollout=2.0, train=1.0, push=0.5, whole=4.0, **figures):
    time = {"started_s": started, "rollout_s": rollout, "train_s": train, "push_s": push, "step_s": whole}
    return {"step": step, "weight_version": step + 1, **figures, "time": time}


def test_the_summary_by_hand():
    rewards = [0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    metrics = [
        line(
            step,
            10.0 + 4 * step,
            reward_mean=reward,
            rollout_tokens=100.0,
            train_tokens=300.0,
            samples_trained=8.0,
            samples_aborted=1.0 if step == 2 else 0.0,
            tito_hard_mismatches=0.0,
            logprob_abs_diff_max=1e-6 * step,
        )
        for step, reward in enumerate(rewards)
    ]
    assert summarise(metrics) == {
        "steps": 7,
        "reward_first": 0.25,
        "reward_last": pytest.approx(0.8),
        "wall_s": 38.0,
        "time_to_first_step_s": 13.0,
        "rollout_tokens_per_s": 50.0,
        "train_tokens_per_s": 300.0,
        "weight_version": 7,
        "samples_trained": 56,
        "samples_aborted": 1,
        "tito_hard_mismatches": 0,
        "logprob_abs_diff_max": pytest.approx(6e-6),
    }


def test_a_step_that_trained_nothing_is_not_the_first_training_step():
    idle = {"step": 0, "weight_version": 0, "time": {"started_s": 5.0, "rollout_s": 2.0, "step_s": 2.0}}
    assert summarise([idle, line(1, 7.0)])["time_to_first_step_s"] == 10.0


def test_the_summary_of_nothing_has_every_key():
    summary = summarise([])
    assert summary["steps"] == 0
    assert summary["reward_first"] is None
    assert set(summary) == set(summarise([line(0, 0.0)]))


def test_measured_figures_replace_derived_ones(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line(0, 1.0)) + "\n")
    path = write_summary(tmp_path, wall_s=99.5)
    summary = json.loads(path.read_text())
    assert summary["wall_s"] == 99.5
    assert summary["steps"] == 1


def test_phases_follow_each_other_from_the_start_of_the_step():
    (placed,) = place_steps([line(3, 10.0)])
    assert placed.phases == {"rollout": (10.0, 12.0), "train": (12.0, 13.0), "push": (13.0, 13.5)}
    assert (placed.step, placed.begin_s, placed.end_s) == (3, 10.0, 14.0)


def test_a_resumed_run_is_placed_after_its_first_part():
    placed = place_steps([line(0, 10.0), line(1, 14.0), line(2, 8.0), line(3, 12.0)])
    assert [(p.begin_s, p.end_s) for p in placed] == [(10.0, 14.0), (14.0, 18.0), (26.0, 30.0), (30.0, 34.0)]
