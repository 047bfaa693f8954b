"""Sampling: what may be drawn, how often, and that a token depends on its own row only."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_core.errors import EngineError
from miles_megatron.engine.sampler import Draw, allowed, sample, uniform
from miles_megatron.engine.sampling_params import SamplingParams


def draw(seed=0, position=0, **params):
    return Draw(SamplingParams(**params), seed, position)


def test_exactly_k_tokens_survive_a_tie_the_lower_ids_first():
    logprobs = torch.log(torch.tensor([0.1, 0.2, 0.2, 0.2, 0.2, 0.1]))
    assert allowed(logprobs, top_k=2, top_p=1.0).nonzero()[:, 0].tolist() == [1, 2]


def test_top_p_takes_the_fewest_tokens_that_reach_the_mass():
    logprobs = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64))
    assert allowed(logprobs, top_k=-1, top_p=0.45).tolist() == [True, False, False, False]
    assert allowed(logprobs, top_k=-1, top_p=0.75).tolist() == [True, True, False, False]
    assert allowed(logprobs, top_k=-1, top_p=0.96).tolist() == [True, True, True, True]


def test_top_p_is_a_share_of_what_top_k_left():
    logprobs = torch.log(torch.tensor([0.4, 0.2, 0.2, 0.2], dtype=torch.float64))
    # Of the two best, 0.4 is 2/3: enough for 0.6. Of all four it would not be.
    assert allowed(logprobs, top_k=2, top_p=0.6).tolist() == [True, False, False, False]
    assert allowed(logprobs, top_k=-1, top_p=0.5).tolist() == [True, True, False, False]


def test_frequencies_follow_the_distribution_at_the_temperature():
    logits = torch.tensor([[0.0, 1.0, 2.0]])
    draws = [draw(seed=s, temperature=2.0) for s in range(6000)]
    counts = Counter(sample(logits.expand(6000, 3), draws)[0])
    total = sum(math.exp(x / 2) for x in (0, 1, 2))
    for token, x in enumerate((0, 1, 2)):
        share = math.exp(x / 2) / total
        assert abs(counts[token] / 6000 - share) < 4 * math.sqrt(share * (1 - share) / 6000)


def test_filters_exclude_what_they_say_in_every_draw():
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]])
    for seed in range(200):
        assert sample(logits, [draw(seed=seed, top_k=2)])[0][0] in (0, 1)
        assert sample(logits, [draw(seed=seed, top_p=0.5)])[0] == [0]


def test_the_logprob_is_that_of_the_whole_distribution_whatever_the_filters():
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]])
    expected = 3.0 / 0.5 - math.log(sum(math.exp(x / 0.5) for x in (3, 2, 1, 0)))
    (token,), (logprob,) = sample(logits, [draw(temperature=0.5, top_k=1)])
    assert token == 0
    assert logprob == pytest.approx(expected, abs=1e-6)


def test_greedy_takes_the_lowest_id_of_a_tie_with_the_logprob_of_the_logits():
    (token,), (logprob,) = sample(torch.tensor([[0.0, 2.0, 2.0]]), [draw(temperature=0.0)])
    assert token == 1
    assert logprob == pytest.approx(2 - math.log(1 + 2 * math.exp(2)), abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(place=st.integers(0, 6), rows=st.integers(1, 7), seed=st.integers(0, 2**63 - 1), position=st.integers(0, 999))
def test_a_token_does_not_depend_on_the_rest_of_the_batch(place, rows, seed, position):
    place %= rows
    logits = torch.randn(rows, 203, generator=torch.Generator().manual_seed(rows))
    others = [draw(seed=i, position=i, temperature=0.5 + i, top_k=i or -1) for i in range(rows)]
    mine = draw(seed=seed, position=position, temperature=0.8, top_p=0.9)
    batch = [*others[:place], mine, *others[place + 1 :]]
    tokens, logprobs = sample(logits, batch)
    alone = sample(logits[place : place + 1], [mine])
    assert ([tokens[place]], [logprobs[place]]) == alone


def test_a_token_of_probability_zero_is_never_drawn():
    logits = torch.tensor([[float("-inf"), 0.0, float("-inf"), 0.0, float("-inf")]])
    found = {sample(logits, [draw(seed=seed)])[0][0] for seed in range(300)}
    assert found == {1, 3}


def test_a_row_of_nan_gives_a_nan_and_leaves_the_other_rows_alone():
    logits = torch.tensor([[float("nan")] * 4, [0.0, 9.0, 0.0, 0.0]])
    _, logprobs = sample(logits, [draw(), draw(seed=1)])
    assert math.isnan(logprobs[0])
    assert math.isfinite(logprobs[1])


def test_random_numbers_lie_below_one_and_differ_by_seed_and_position():
    numbers = {uniform(seed, position) for seed in range(30) for position in range(30)}
    assert len(numbers) == 900
    assert all(0 <= x < 1 for x in numbers)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"temperature": -1}, "temperature: expected a number, 0 or more, found -1"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"stop": 3}, "stop: expected a list"),
        ({"stop": [""]}, "stop: expected non-empty strings"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids"),
        ({"sampling_seed": "x"}, "sampling_seed"),
        ({"frequency_penalty": 0.5}, "frequency_penalty: this engine does not support it"),
        ({"nonsense": 1}, "nonsense: this engine does not support it"),
    ],
)
def test_a_bad_parameter_is_refused_by_name_with_status_400(body, words):
    with pytest.raises(EngineError, match=words) as caught:
        SamplingParams.parse(body)
    assert caught.value.status == 400


def test_neutral_values_of_unsupported_parameters_are_accepted():
    body = {"min_p": 0.0, "repetition_penalty": 1.0, "stop": "x", "temperature": None, "skip_special_tokens": True}
    assert SamplingParams.parse(body) == SamplingParams(stop=("x",))
