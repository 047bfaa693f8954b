import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_core.errors import TrainError
from miles_megatron.balance import balance
from miles_megatron.packing import pack
from miles_megatron.plan import deal_rollouts, plan_update

lengths = st.lists(st.integers(1, 120), min_size=0, max_size=60)


def test_first_fit_decreasing_by_hand():
    # sorted: 6(2) 5(0) 4(3) 3(1) 2(4); budget 10: [6,4] [5,3,2]
    packs = pack([5, 3, 6, 4, 2], token_budget=10)
    assert [(p.members, p.num_tokens) for p in packs] == [((2, 3), 10), ((0, 1, 4), 10)]


@given(lengths, st.integers(1, 200))
def test_every_sequence_is_in_one_pack_within_the_budget_or_alone(found, budget):
    packs = pack(found, token_budget=budget)
    assert sorted(i for p in packs for i in p.members) == list(range(len(found)))
    for p in packs:
        assert p.num_tokens == sum(found[i] for i in p.members)
        assert p.num_tokens <= budget or len(p.members) == 1
        assert list(p.members) == sorted(p.members)


@given(lengths, st.integers(120, 300))
def test_no_two_packs_could_be_one(found, budget):
    tokens = sorted(p.num_tokens for p in pack(found, token_budget=budget))
    assert all(a + b > budget for a, b in itertools.pairwise(tokens))


def test_an_oversize_sequence_is_refused_with_its_length():
    with pytest.raises(TrainError, match="sequence 1: expected at most 10 tokens, found 11"):
        pack([3, 11], token_budget=10, oversize="refuse")
    assert pack([3, 11], token_budget=10)[0].members == (1,)


def test_balance_by_hand():
    # largest differencing on 8,7,6,5,4 for two parts leaves sums of 16 and 14
    parts = balance([8, 7, 6, 5, 4], 2)
    assert sorted(sum([8, 7, 6, 5, 4][i] for i in p) for p in parts) == [14, 16]


@given(st.lists(st.integers(1, 500), max_size=40), st.integers(1, 6))
def test_balance_deals_every_item_once_and_spreads_by_less_than_the_largest(costs, parts):
    dealt = balance(costs, parts)
    assert len(dealt) == parts
    assert sorted(i for part in dealt for i in part) == list(range(len(costs)))
    sums = [sum(costs[i] for i in part) for part in dealt]
    assert max(sums) - min(sums) <= max(costs, default=0)


def test_many_sequences_are_balanced_within_a_percent():
    costs = [20 + (i * 53) % 380 for i in range(128)]
    for parts in (2, 4, 8):
        sums = [sum(costs[i] for i in part) for part in balance(costs, parts)]
        assert (max(sums) - min(sums)) / max(sums) < 0.01


def test_siblings_of_a_rollout_land_in_the_same_minibatch():
    rollouts = [("g", str(i % 5)) for i in range(15)]
    dealt = deal_rollouts(rollouts, minibatches=3, seed=4)
    assert sorted(i for part in dealt for i in part) == list(range(15))
    for part in dealt:
        assert all({j for j in range(15) if rollouts[j] == rollouts[i]} <= set(part) for i in part)
    assert dealt == deal_rollouts(rollouts, minibatches=3, seed=4)
    assert dealt != deal_rollouts(rollouts, minibatches=3, seed=5)


def test_more_minibatches_than_rollouts_are_refused():
    with pytest.raises(TrainError, match="at least 3 rollouts for 3 minibatches, found 2"):
        deal_rollouts([("g", "0"), ("g", "1")], minibatches=3, seed=0)


def test_one_minibatch_keeps_the_order_whatever_the_seed():
    assert deal_rollouts([("g", "1"), ("g", "0")], minibatches=1, seed=9) == ((0, 1),)


@given(lengths, st.integers(1, 4), st.integers(1, 200))
def test_every_rank_has_as_many_packs_and_each_trained_sequence_is_in_one(found, ranks, budget):
    trained = [length % 3 for length in found]
    plan = plan_update(
        range(len(found)), lengths=found, trained=trained, ranks=ranks, token_budget=budget, oversize="alone"
    )
    assert len({len(packs) for packs in plan.packs}) == 1
    packed = sorted(i for packs in plan.packs for p in packs for i in p.members)
    assert packed == [i for i, count in enumerate(trained) if count]
    assert plan.members == tuple(range(len(found)))
