"""A radix tree over bytes: how much of a key was seen, and what was kept there, within a bound on its memory."""

import heapq
from collections.abc import Iterator
from itertools import count
from typing import Any

NODE_BYTES = 400
"""What a node costs beside its label; counted, so that many short keys are bounded too."""


class _Node:
    __slots__ = ("children", "cost", "label", "parent", "queued", "used", "value")

    def __init__(self, label: bytes, parent: "_Node | None", used: int) -> None:
        self.label = label
        self.parent = parent
        self.children: dict[int, _Node] = {}
        self.value: Any = None
        self.cost = 0
        """Bytes that the value was said to take."""
        self.queued = False
        """True while the tree's heap holds it: never more than once."""
        self.used = used
        """Number of the last insertion that went through here."""


class RadixTree:
    """Keys, each kept once where they share a beginning; beyond `max_bytes` the longest unused ends are dropped."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._root = _Node(b"", None, 0)
        self._size = 0
        self._clock = count(1)
        self._order = count()
        self._leaves: list[tuple[int, int, _Node]] = []
        """A heap of (last use as known when pushed, order, node); what is stale in it is noticed when popped."""

    @property
    def size_bytes(self) -> int:
        """Labels and the cost of their nodes."""
        return self._size

    def match(self, key: bytes) -> int:
        """Length of the longest beginning of the key that is in the tree. Uses nothing up and marks nothing used."""
        node, at = self._root, 0
        while at < len(key) and (child := node.children.get(key[at])):
            same = _common(child.label, key, at)
            at += same
            if same < len(child.label):
                break
            node = child
        return at

    def longest(self, key: bytes) -> tuple[int, Any]:
        """Length and value of the longest inserted beginning of the key that has a value, marked used; (0, None)."""
        now = next(self._clock)
        node, at = self._root, 0
        best: tuple[int, Any] = (0, None)
        while at < len(key) and (child := node.children.get(key[at])) and key.startswith(child.label, at):
            node, at = child, at + len(child.label)
            node.used = now
            if node.value is not None:
                best = at, node.value
        return best

    def insert(self, key: bytes, value: Any = None, *, cost: int = 0) -> None:
        """Add the key and mark all of it used now. value: kept at its end, if given, for `cost` bytes."""
        now = next(self._clock)
        node, at = self._root, 0
        while at < len(key):
            child = node.children.get(key[at])
            if child is None:
                node = self._add_leaf(node, key[at:], now)
                break
            same = _common(child.label, key, at)
            if same < len(child.label):
                child = self._split(child, same)
            child.used = now
            node, at = child, at + same
        if value is not None and key:
            self._size += cost - node.cost
            node.value, node.cost = value, cost
        while self._size > self._max_bytes and self._leaves:
            self._evict()

    def labels(self) -> Iterator[bytes]:
        """Every label, for those who want to check the tree."""
        pending = list(self._root.children.values())
        while pending:
            node = pending.pop()
            yield node.label
            pending.extend(node.children.values())

    def _add_leaf(self, parent: _Node, label: bytes, now: int) -> _Node:
        leaf = parent.children[label[0]] = _Node(label, parent, now)
        self._size += len(label) + NODE_BYTES
        self._push(leaf)
        return leaf

    def _split(self, node: _Node, at: int) -> _Node:
        """Cut the node's label in two; the new node holds its beginning and stands above it."""
        assert node.parent is not None
        upper = _Node(node.label[:at], node.parent, node.used)
        node.parent.children[upper.label[0]] = upper
        node.label, node.parent = node.label[at:], upper
        upper.children[node.label[0]] = node
        self._size += NODE_BYTES
        return upper

    def _push(self, leaf: _Node) -> None:
        if leaf.queued:
            return
        leaf.queued = True
        heapq.heappush(self._leaves, (leaf.used, next(self._order), leaf))

    def _evict(self) -> None:
        """Drop the leaf that was not used for longest."""
        used, _, leaf = heapq.heappop(self._leaves)
        leaf.queued = False
        if leaf.children:  # it grew; it is pushed again when its last child goes
            return
        if leaf.used != used:
            self._push(leaf)
            return
        parent = leaf.parent
        assert parent is not None
        del parent.children[leaf.label[0]]
        self._size -= len(leaf.label) + NODE_BYTES + leaf.cost
        if not parent.children and parent.parent is not None:
            self._push(parent)


def _common(label: bytes, key: bytes, at: int) -> int:
    """How many bytes of the label stand in the key from `at` on; by comparing halves, which is memcmp's work."""
    if key.startswith(label, at):
        return len(label)
    low, high = 0, min(len(label), len(key) - at)
    while low < high:
        middle = (low + high + 1) // 2
        if label[low:middle] == key[at + low : at + middle]:
            low = middle
        else:
            high = middle - 1
    return low
