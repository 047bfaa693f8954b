import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_core.errors import PluginError, TrainError
from miles_megatron.advantages import RewardedSequence, choose_advantage
from miles_megatron.advantages.grpo import grpo


def sequences(*groups, trained=2):
    return [
        RewardedSequence(group_id=f"g{g}", rollout_id=f"r{r}", reward=reward, trained=trained)
        for g, rewards in enumerate(groups)
        for r, reward in enumerate(rewards)
    ]


def values(result):
    return [float(array[0]) for array in result]


def test_two_rewards_of_zero_and_one_by_hand():
    # mean 1/2, unbiased variance 1/2
    expected = 0.5 / (math.sqrt(0.5) + 1e-6)
    assert values(grpo(sequences([0.0, 1.0]))) == pytest.approx([-expected, expected], abs=1e-15)


def test_without_std_the_advantage_is_the_distance_to_the_mean():
    assert values(grpo(sequences([0.0, 1.0, 5.0]), std=False)) == [-2.0, -1.0, 3.0]


def test_groups_do_not_see_each_other():
    together = values(grpo(sequences([0.0, 1.0], [7.0, 3.0, 3.0])))
    apart = values(grpo(sequences([0.0, 1.0]))) + values(grpo(sequences([7.0, 3.0, 3.0])))
    assert together == apart


@pytest.mark.parametrize("std", [True, False])
@pytest.mark.parametrize("reward", [0.1, 1 / 3, 1e-30, 1e30, -0.7])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_constant_group_gives_exactly_zero(std, reward, size):
    assert all((array == 0.0).all() for array in grpo(sequences([reward] * size), std=std))


def test_siblings_share_their_rollouts_value_and_count_once():
    split = [
        RewardedSequence(group_id="g", rollout_id="a", reward=1.0, trained=1),
        RewardedSequence(group_id="g", rollout_id="a", reward=1.0, trained=5),
        RewardedSequence(group_id="g", rollout_id="a", reward=1.0, trained=2),
        RewardedSequence(group_id="g", rollout_id="b", reward=0.0, trained=3),
    ]
    result = grpo(split)
    whole = values(grpo(sequences([1.0, 0.0])))
    assert [len(array) for array in result] == [1, 5, 2, 3]
    assert values(result) == [whole[0]] * 3 + [whole[1]]


def test_siblings_that_disagree_are_refused():
    split = [RewardedSequence(group_id="g", rollout_id="a", reward=r, trained=1) for r in (1.0, 0.5)]
    with pytest.raises(TrainError, match=r"rollout a of group g.*1\.0 and 0\.5"):
        grpo(split)


rewards = st.lists(st.integers(-1000, 1000).map(lambda n: n / 8), min_size=2, max_size=9)


@given(rewards, st.booleans())
def test_equals_a_double_loop(group, std):
    mean = 0.0
    for reward in group:
        mean += reward / len(group)
    variance = 0.0
    for reward in group:
        variance += (reward - mean) * (reward - mean) / (len(group) - 1)
    for reward, value in zip(group, values(grpo(sequences(group), std=std)), strict=True):
        expected = (reward - mean) / (math.sqrt(variance) + 1e-6) if std else reward - mean
        assert value == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(rewards, st.integers(-64, 64), st.booleans())
def test_a_shift_of_all_rewards_changes_nothing(group, shift, std):
    shifted = values(grpo(sequences([reward + shift for reward in group]), std=std))
    assert shifted == pytest.approx(values(grpo(sequences(group), std=std)), rel=1e-9, abs=1e-9)


@given(rewards, st.booleans())
def test_advantages_sum_to_zero_and_keep_the_order_of_rewards(group, std):
    found = values(grpo(sequences(group), std=std))
    assert sum(found) == pytest.approx(0.0, abs=1e-8)
    ordered = [value for _, value in sorted(zip(group, found, strict=True))]
    assert all(a <= b for a, b in pairwise(ordered))


def test_a_name_or_an_attribute_finds_an_estimator():
    assert choose_advantage("grpo") is grpo
    assert choose_advantage("miles_megatron.advantages.grpo:grpo") is grpo
    with pytest.raises(PluginError, match="did you mean grpo"):
        choose_advantage("grpoo")
    with pytest.raises(PluginError, match=r"expected a function pi\(sequences, \*, std\), found float"):
        choose_advantage("math:pi")
    with pytest.raises(PluginError, match=r"expected fsum\(sequences, \*, std\), found fsum\("):
        choose_advantage("math:fsum")
    with pytest.raises(PluginError, match="cannot be imported"):
        choose_advantage("no_such_module:function")


def test_values_are_float64_on_every_trained_token():
    result = grpo(sequences([0.0, 1.0], trained=3))
    assert [(a.dtype, a.shape) for a in result] == [(np.dtype(np.float64), (3,))] * 2
