"""The hash ring: who owns a key depends on the nodes alone, and few keys move."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from miles_router.ring import Ring
from miles_router.sessions.cluster.assignment import assign, plan_moves

NODES = st.lists(st.text("abcdef", min_size=1, max_size=4), min_size=1, max_size=6, unique=True)
KEYS = [b"key %d" % n for n in range(300)]


def ring_of(nodes, points=64) -> Ring:
    ring = Ring(points=points)
    for node in nodes:
        ring.add(node)
    return ring


def owners(ring) -> list[str]:
    return [next(ring.owners(key)) for key in KEYS]


@settings(max_examples=30, deadline=None)
@given(NODES, st.randoms())
def test_the_owner_of_a_key_does_not_depend_on_the_order_in_which_nodes_came(nodes, random):
    shuffled = list(nodes)
    random.shuffle(shuffled)
    assert owners(ring_of(nodes)) == owners(ring_of(shuffled))


@settings(max_examples=30, deadline=None)
@given(NODES.filter(lambda nodes: len(nodes) > 1))
def test_only_the_keys_of_a_node_that_leaves_move_and_they_come_back_with_it(nodes):
    ring = ring_of(nodes)
    before = owners(ring)
    ring.remove(nodes[0])
    without = owners(ring)
    assert all(now == was for now, was in zip(without, before, strict=True) if was != nodes[0])
    assert nodes[0] not in without
    # The next node that the ring names for a key is the one that takes it over.
    full = ring_of(nodes)
    assert without == [next(o for o in full.owners(key) if o != nodes[0]) for key in KEYS]
    ring.add(nodes[0])
    assert owners(ring) == before


def test_the_shares_of_ten_nodes_are_within_half_of_the_mean():
    ring = ring_of([f"node {n}" for n in range(10)], points=128)
    counts = Counter(next(ring.owners(b"%d" % n)) for n in range(20_000))
    assert all(1000 < count < 3000 for count in counts.values())
    assert len(counts) == 10


def test_a_ring_without_nodes_owns_nothing():
    assert list(Ring().owners(b"key")) == []


def test_shards_go_to_the_first_on_the_ring_that_is_alive():
    ring = ring_of("abc")
    everyone = assign(64, ring, {"a", "b", "c"})
    some = assign(64, ring, {"a", "c"})
    assert set(everyone.values()) == {"a", "b", "c"}
    assert all(some[shard] == name for shard, name in everyone.items() if name != "b")
    assert assign(64, ring, set()) == {}


def test_a_shard_is_released_before_it_is_acquired():
    wanted = {0: "a", 1: "a", 2: "b", 3: "b"}
    moves = plan_moves(wanted, {0: "a", 1: "b", 2: "a"})
    assert moves.release == {"a": (2,), "b": (1,)}
    assert moves.acquire == {"b": (3,)}
    assert plan_moves(wanted, wanted) == plan_moves({}, {0: "a"})
