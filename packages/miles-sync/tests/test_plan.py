import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_core.errors import WeightSyncError
from miles_sync.plan import ALIGNMENT, Slot, fused_unit, plan_buckets


def slot(name, nbytes):
    return Slot(name=name, dtype="uint8", shape=(nbytes,), nbytes=nbytes)


def test_offsets_are_rounded_up_to_64_bytes():
    (bucket,) = plan_buckets([slot("a", 1), slot("b", 64), slot("c", 65), slot("d", 3)], bucket_bytes=1000)
    assert [(s.name, s.offset) for s in bucket.slots] == [("a", 0), ("b", 64), ("c", 128), ("d", 256)]
    assert bucket.nbytes == 259


def test_a_bucket_closes_before_the_tensor_that_would_exceed_the_budget():
    buckets = list(plan_buckets([slot("a", 64), slot("b", 64), slot("c", 64)], bucket_bytes=128))
    assert [[s.name for s in b.slots] for b in buckets] == [["a", "b"], ["c"]]
    assert [b.nbytes for b in buckets] == [128, 64]


def test_q_k_v_stay_together_even_when_their_first_would_still_fit():
    q, k, v = (slot(f"model.layers.3.self_attn.{x}_proj.weight", 64) for x in "qkv")
    buckets = list(plan_buckets([slot("a", 64), q, k, v, slot("z", 64)], bucket_bytes=200))
    assert [[s.name for s in b.slots] for b in buckets] == [["a"], [q.name, k.name, v.name], ["z"]]


def test_a_unit_larger_than_the_budget_travels_alone_and_whole():
    gate, up = slot("m.mlp.gate_proj.weight", 500), slot("m.mlp.up_proj.weight", 500)
    buckets = list(plan_buckets([slot("a", 10), gate, up, slot("b", 10)], bucket_bytes=100))
    assert [[s.name for s in b.slots] for b in buckets] == [["a"], [gate.name, up.name], ["b"]]


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.qkv"),
        ("model.layers.0.self_attn.k_proj.bias", "model.layers.0.self_attn.qkv"),
        ("model.layers.10.mlp.experts.7.up_proj.weight", "model.layers.10.mlp.experts.7.gate_up"),
        ("model.layers.0.mlp.down_proj.weight", "model.layers.0.mlp.down_proj.weight"),
        ("model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts.gate_up_proj"),
        ("lm_head.weight", "lm_head.weight"),
    ],
)
def test_the_unit_of_a_name(name, unit):
    assert fused_unit(name) == unit


def test_a_unit_that_comes_back_is_refused_by_name():
    slots = [slot("m.q_proj.weight", 1), slot("m.o_proj.weight", 1), slot("m.k_proj.weight", 1)]
    with pytest.raises(WeightSyncError, match=r"tensor m\.k_proj\.weight: its unit m\.qkv was already sent"):
        list(plan_buckets(slots, bucket_bytes=100))


def test_no_more_is_read_than_the_tensor_after_the_bucket():
    read = []

    def slots():
        for name in "abcdef":
            read.append(name)
            yield slot(name, 64)

    next(plan_buckets(slots(), bucket_bytes=128))
    # b ends when c is seen, and c is known not to fit only when its unit ends, at d
    assert read == ["a", "b", "c", "d"]


def test_no_tensors_give_no_buckets():
    assert list(plan_buckets([], bucket_bytes=1)) == []


@given(
    units=st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=4), max_size=30),
    bucket_bytes=st.integers(1, 1000),
)
def test_every_tensor_once_in_order_aligned_disjoint_and_within_budget(units, bucket_bytes):
    slots = [slot(f"{u}/{i}", nbytes) for u, unit in enumerate(units) for i, nbytes in enumerate(unit)]
    buckets = list(plan_buckets(slots, bucket_bytes=bucket_bytes, unit_of=lambda name: name.split("/")[0]))
    assert [s.name for b in buckets for s in b.slots] == [s.name for s in slots]
    homes = {}
    for number, bucket in enumerate(buckets):
        end = 0
        for s in bucket.slots:
            assert s.offset % ALIGNMENT == 0
            assert end <= s.offset < end + ALIGNMENT
            end = s.offset + s.nbytes
            homes.setdefault(s.name.split("/")[0], set()).add(number)
        assert bucket.nbytes == end
        assert bucket.nbytes <= bucket_bytes or len({s.name.split("/")[0] for s in bucket.slots}) == 1
    assert all(len(home) == 1 for home in homes.values())
