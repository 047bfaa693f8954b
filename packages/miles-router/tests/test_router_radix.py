"""The radix tree against a list of keys, its bound, and who is forgotten first."""

from hypothesis import given
from hypothesis import strategies as st

from miles_router.radix import NODE_BYTES, RadixTree

KEYS = st.lists(st.text("ab", max_size=12).map(str.encode), max_size=30)


def shared(a: bytes, b: bytes) -> int:
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@given(KEYS, st.text("ab", max_size=12).map(str.encode))
def test_a_match_is_the_longest_beginning_that_any_key_has(keys, asked):
    tree = RadixTree(max_bytes=1 << 20)
    for key in keys:
        tree.insert(key)
    assert tree.match(asked) == max((shared(key, asked) for key in keys), default=0)


@given(KEYS)
def test_what_keys_share_is_kept_once(keys):
    tree = RadixTree(max_bytes=1 << 20)
    for key in keys:
        tree.insert(key)
    beginnings = {key[:n] for key in keys for n in range(1, len(key) + 1)}
    labels = list(tree.labels())
    assert sum(map(len, labels)) == len(beginnings)
    assert tree.size_bytes == len(beginnings) + NODE_BYTES * len(labels)


@given(st.lists(st.tuples(st.text("ab", min_size=1, max_size=12).map(str.encode), st.integers(0, 99)), max_size=30))
def test_values_stay_with_their_keys_when_nodes_are_split(pairs):
    tree = RadixTree(max_bytes=1 << 20)
    latest = {}
    for key, value in pairs:
        tree.insert(key, value)
        latest[key] = value
    for key, value in latest.items():
        assert tree.longest(key) == (len(key), value)
        assert tree.longest(key + b"c") == (len(key), value)
    beginnings = [k for k in latest if b"abab".startswith(k)]
    expected = max(beginnings, key=len, default=b"")
    assert tree.longest(b"abab") == ((len(expected), latest[expected]) if expected else (0, None))


@given(st.lists(st.tuples(st.text("abc", min_size=1, max_size=20).map(str.encode), st.integers(0, 500)), max_size=60))
def test_the_bound_holds_and_the_books_are_right(entries):
    tree = RadixTree(max_bytes=4000)
    for key, cost in entries:
        tree.insert(key, key, cost=cost)
        assert tree.size_bytes <= 4000
    kept = list(tree.labels())
    held = tree.size_bytes - sum(map(len, kept)) - NODE_BYTES * len(kept)
    assert 0 <= held <= sum(cost for _, cost in entries)


def test_the_longest_unused_is_forgotten_first():
    tree = RadixTree(max_bytes=3 * (NODE_BYTES + 4))
    for key in (b"aaaa", b"bbbb", b"cccc"):
        tree.insert(key)
    tree.insert(b"aaaa")
    tree.insert(b"dddd")
    assert [tree.match(key) for key in (b"aaaa", b"bbbb", b"cccc", b"dddd")] == [4, 0, 4, 4]


def test_an_end_goes_before_what_others_share():
    tree = RadixTree(max_bytes=3 * NODE_BYTES + 30)
    tree.insert(b"shared-one")
    tree.insert(b"shared-two")
    tree.insert(b"shared-two-and-more")
    assert tree.match(b"shared-one") == len(b"shared-")
    assert tree.match(b"shared-two-and-more") == len(b"shared-two-and-more")


def test_a_key_larger_than_the_bound_leaves_the_tree_empty():
    tree = RadixTree(max_bytes=500)
    tree.insert(b"x" * 10_000)
    assert (tree.size_bytes, tree.match(b"xxx")) == (0, 0)
