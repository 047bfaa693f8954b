import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_core.errors import TrainError
from miles_megatron.reductions import SequenceCount, choose_reduction

MEAN, SEQUENCE, FIXED = (choose_reduction(name) for name in ("token_mean", "sequence_mean", "fixed_length"))


def counts(*pairs):
    return [SequenceCount(rollout=("g", rollout), trained=trained) for rollout, trained in pairs]


def test_token_mean_divides_by_all_trained_tokens():
    assert MEAN(counts(("a", 3), ("b", 0), ("c", 5)), None) == [1 / 8] * 3


def test_sequence_mean_counts_rollouts_also_those_without_tokens():
    # three rollouts: a has 4 tokens in two siblings, b has 2, c has none
    found = SEQUENCE(counts(("a", 1), ("b", 2), ("a", 3), ("c", 0)), None)
    assert found == [1 / 12, 1 / 6, 1 / 12, 0.0]


def test_fixed_length_divides_by_a_constant():
    assert FIXED(counts(("a", 1), ("b", 2)), 50) == [1 / 50, 1 / 50]
    with pytest.raises(TrainError, match="constant above 0"):
        FIXED(counts(("a", 1)), None)


def test_equal_rollout_names_in_different_groups_are_different_rollouts():
    two = [SequenceCount(rollout=(group, "0"), trained=2) for group in ("g", "h")]
    assert SEQUENCE(two, None) == [1 / 4, 1 / 4]


def test_nothing_to_train_gives_no_weight():
    assert MEAN(counts(("a", 0), ("b", 0)), None) == [0.0, 0.0]
    assert SEQUENCE(counts(("a", 0), ("b", 0)), None) == [0.0, 0.0]


some = st.lists(st.tuples(st.sampled_from("abcde"), st.integers(1, 9)), min_size=1, max_size=12)


@given(some)
def test_a_loss_of_one_everywhere_has_a_mean_of_one(pairs):
    for reduction in (MEAN, SEQUENCE):
        weights = reduction(counts(*pairs), None)
        assert sum(w * trained for w, (_, trained) in zip(weights, pairs, strict=True)) == pytest.approx(1.0)
