"""A consistent hash ring: keys belong to nodes, and move only when their node comes or goes."""

from bisect import bisect_left, insort
from collections.abc import Iterator

import xxhash


class Ring:
    """Nodes by name, each at `points` places of a circle of 64-bit hashes. More points make the shares more even.

    A key belongs to the node whose point is the first at or after the key's hash. Who comes first is the same in every
    process and does not depend on the order in which nodes came.
    """

    def __init__(self, *, points: int = 128) -> None:
        self._points = points
        self._ring: list[tuple[int, str]] = []

    def add(self, node: str) -> None:
        """Put the node on the ring; it takes keys from others, none move between those."""
        for point in self._places(node):
            insort(self._ring, point)

    def remove(self, node: str) -> None:
        """Take the node off the ring; its keys go to the next nodes, each to its own."""
        self._ring = [point for point in self._ring if point[1] != node]

    def owners(self, key: bytes) -> Iterator[str]:
        """The key's node, then those that take over from one another while the ones before are away.

        A node may come up several times.
        """
        start = bisect_left(self._ring, (xxhash.xxh3_64_intdigest(key), ""))
        for place in range(start, start + len(self._ring)):
            yield self._ring[place % len(self._ring)][1]

    def _places(self, node: str) -> list[tuple[int, str]]:
        return [(xxhash.xxh3_64_intdigest(f"{node}#{number}".encode()), node) for number in range(self._points)]
