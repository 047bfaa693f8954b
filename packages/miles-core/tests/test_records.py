"""Spans, samples, groups, batches, messages, prompts and seeds."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_core.batch import TrainBatch, TrainSequence
from miles_core.errors import RecordError
from miles_core.messages import check_messages, text_of
from miles_core.prompt import Prompt
from miles_core.sample import Finish, Group, Origin, Sample, Span
from miles_core.seeds import derive


def sampled(ids, **fields):
    count = len(ids)
    given = {"logprobs": (-0.5,) * count, "weight_versions": (4,) * count, **fields}
    return Span(origin=Origin.SAMPLED, ids=tuple(ids), **given)


def three_turns(**fields):
    spans = (
        Span(origin=Origin.PROMPT, ids=(1, 2, 3)),
        sampled((10, 11)),
        Span(origin=Origin.GLUE, ids=(5,)),
        Span(origin=Origin.ENVIRONMENT, ids=(6, 7)),
        sampled((12,), trained=False),
        sampled((13, 14)),
    )
    given = {"prompt_id": "p", "rollout_id": "r", "spans": spans, "finish": Finish.STOP, **fields}
    return Sample(**given)


def test_only_sampled_and_trained_tokens_have_mask_one():
    sample = three_turns()
    assert sample.ids.tolist() == [1, 2, 3, 10, 11, 5, 6, 7, 12, 13, 14]
    assert sample.loss_mask.astype(int).tolist() == [0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1]
    assert sample.logprobs.tolist() == [0, 0, 0, -0.5, -0.5, 0, 0, 0, -0.5, -0.5, -0.5]
    assert sample.weight_versions.tolist() == [-1, -1, -1, 4, 4, -1, -1, -1, 4, 4, 4]
    assert (sample.prompt_length, sample.response_length, sample.num_trainable) == (3, 8, 4)


def test_nothing_of_an_aborted_sample_is_trained():
    sample = three_turns().aborted("the agent raised")
    assert not sample.loss_mask.any()
    assert (sample.error, sample.reward, sample.num_tokens) == ("the agent raised", 0.0, 11)


def test_a_sample_without_sampled_tokens_is_all_prompt():
    sample = three_turns(spans=(Span(origin=Origin.PROMPT, ids=(1, 2)),))
    assert (sample.prompt_length, sample.response_length) == (2, 0)


def test_a_sample_without_spans_has_empty_arrays():
    sample = three_turns(spans=())
    assert [len(a) for a in (sample.ids, sample.loss_mask, sample.logprobs, sample.weight_versions)] == [0, 0, 0, 0]


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": (-0.5,)},
        {"weight_versions": (1, 2, 3)},
        {"logprobs": (-0.5, 0.1)},
        {"logprobs": (-0.5, math.nan)},
        {"logprobs": (-math.inf, -0.5)},
        {"ids": (-1, 3)},
        {"ids": (1, 2**31)},
    ],
)
def test_a_span_whose_arrays_do_not_fit_is_refused(fields):
    given = {"ids": (10, 11), "logprobs": (-0.5, -0.5), "weight_versions": (4, 4), **fields}
    with pytest.raises(RecordError):
        Span(origin=Origin.SAMPLED, **given)


def test_a_prompt_span_carries_no_logprobs():
    with pytest.raises(RecordError, match="needs 0 logprobs, found 1"):
        Span(origin=Origin.PROMPT, ids=(1,), logprobs=(-0.1,))


@pytest.mark.parametrize(
    "fields",
    [
        {"reward": math.nan},
        {"reward": math.inf},
        {"finish": Finish.ABORTED},
        {"error": "why"},
        {"routing": np.zeros((11, 2, 2), dtype=np.uint8)},
        {"routing": np.zeros((10, 2), dtype=np.uint8)},
        {"routing": np.zeros((10, 2, 2), dtype=np.int32)},
    ],
)
def test_a_sample_that_contradicts_itself_is_refused(fields):
    with pytest.raises(RecordError, match="sample r"):
        three_turns(**fields)


def test_routing_has_one_row_less_than_tokens():
    assert three_turns(routing=np.zeros((10, 2, 2), dtype=np.uint8)).routing.shape == (10, 2, 2)


def test_siblings_of_a_rollout_count_once_and_aborted_ones_not_at_all():
    a = three_turns(rollout_id="a", reward=1.0)
    b = three_turns(rollout_id="b", reward=0.5)
    failed = three_turns(rollout_id="c").aborted("late")
    group = Group(prompt_id="p", samples=(a, a, b, failed))
    assert group.rewards == {"a": 1.0, "b": 0.5}


def test_siblings_with_two_rewards_are_refused():
    with pytest.raises(RecordError, match=r"share one reward, found 1\.0 and 0\.5"):
        Group(prompt_id="p", samples=(three_turns(reward=1.0), three_turns(reward=0.5)))


def test_a_group_with_a_stranger_is_refused():
    with pytest.raises(RecordError, match="other prompts"):
        Group(prompt_id="p", samples=(three_turns(prompt_id="q"),))


def test_a_batch_keeps_order_and_leaves_out_aborted_and_empty_samples():
    first = Group(prompt_id="p", samples=(three_turns(rollout_id="a", reward=1.0), three_turns(spans=(), reward=0.0)))
    second = Group(
        prompt_id="q",
        samples=(
            three_turns(prompt_id="q", rollout_id="b").aborted("late"),
            three_turns(prompt_id="q", rollout_id="c", reward=0.0),
        ),
    )
    batch = TrainBatch.of([first, second], step=3)
    assert [s.rollout_id for s in batch.sequences] == ["a", "c"]
    assert (batch.num_tokens, batch.num_trainable) == (22, 8)


def test_a_group_enters_a_batch_once():
    group = Group(prompt_id="p", samples=(three_turns(reward=1.0),))
    with pytest.raises(RecordError, match="p twice"):
        TrainBatch.of([group, group], step=0)


def test_an_unjudged_sample_enters_no_batch():
    with pytest.raises(RecordError, match="expected a reward before training"):
        TrainBatch.of([Group(prompt_id="p", samples=(three_turns(),))], step=0)


def test_a_batch_of_nothing_is_refused():
    with pytest.raises(RecordError, match="step 5: expected at least one sequence"):
        TrainBatch.of([], step=5)


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_a_batch_needs_a_temperature_above_zero(temperature):
    with pytest.raises(RecordError, match="temperature above 0"):
        TrainBatch.of([Group(prompt_id="p", samples=(three_turns(reward=1.0),))], step=0, temperature=temperature)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("loss_mask", np.zeros(10, dtype=bool)),
        ("rollout_logprobs", np.zeros(12, dtype=np.float32)),
        ("loss_mask", np.ones(11, dtype=bool)),
        ("routing", np.zeros((9, 1, 1), dtype=np.uint8)),
        ("reward", math.nan),
    ],
)
def test_a_sequence_whose_arrays_do_not_fit_is_refused(field, value):
    sequence = TrainSequence.of(three_turns(reward=1.0))
    fields = {name: getattr(sequence, name) for name in TrainSequence.__slots__}
    with pytest.raises(RecordError, match="sequence r"):
        TrainSequence(**{**fields, field: value})


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ("hello", "list of objects"),
        (["hello"], "message 0: expected an object"),
        ([{"role": "robot"}], "expected a role among"),
        ([{"role": "user", "content": 3}], "expected content as"),
        ([{"role": "assistant", "tool_calls": 3}], "tool_calls as a list"),
        ([{"role": "assistant", "tool_calls": [{"function": {}}]}], "function.name"),
    ],
)
def test_a_message_of_another_shape_is_refused_with_its_place(messages, told):
    with pytest.raises(RecordError, match=told):
        check_messages(messages)


def test_text_parts_are_joined_and_other_parts_refused():
    assert text_of(["a", {"type": "text", "text": "b"}, {"type": "output_text", "text": "c"}]) == "abc"
    assert text_of(None) == ""
    with pytest.raises(RecordError, match="image_url"):
        text_of([{"type": "image_url"}])


def test_a_prompt_needs_a_message():
    with pytest.raises(RecordError, match="at least one message"):
        Prompt(prompt_id="0-0", messages=())


def test_the_seed_tree_is_fixed_for_ever():
    assert derive(42, "rollout", 3, "0-7", 1) == 4866358360144093725
    assert derive(0) != derive(1)
    assert derive(0, "1") != derive(0, 1)
    assert derive(0, "a", "b") != derive(0, "a/s1:b")


path = st.lists(st.text() | st.integers(), max_size=4)


@given(st.integers(min_value=0), path, path)
def test_different_paths_have_different_seeds_in_range(seed, first, second):
    ours, theirs = derive(seed, *first), derive(seed, *second)
    assert 0 <= ours < 2**63
    same = [(type(a), a) for a in first] == [(type(b), b) for b in second]
    assert (ours == theirs) == same
