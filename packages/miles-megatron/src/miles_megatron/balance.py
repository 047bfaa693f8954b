"""Which rank takes which sequences: largest differencing (Karmarkar and Karp, 1982), a pure plan."""

import heapq
from collections.abc import Sequence

Part = tuple[int, tuple[int, ...]]
"""Sum of costs and the items of one part."""


def balance(costs: Sequence[int], parts: int) -> tuple[tuple[int, ...], ...]:
    """Deal items to `parts` parts so that their sums of costs are close; items ascending in each part.

    Equal input gives an equal plan. With fewer items than parts some parts are empty.
    """
    if parts == 1 or not costs:
        return (tuple(range(len(costs))), *(() for _ in range(parts - 1)))
    heap = [_entry(number, _single(item, cost, parts)) for number, (item, cost) in enumerate(enumerate(costs))]
    heapq.heapify(heap)
    number = len(heap)
    while len(heap) > 1:
        first, second = heapq.heappop(heap)[2], heapq.heappop(heap)[2]
        merged = [(a[0] + b[0], a[1] + b[1]) for a, b in zip(first, reversed(second), strict=True)]
        heapq.heappush(heap, _entry(number, merged))
        number += 1
    return tuple(sorted(tuple(sorted(items)) for _, items in heap[0][2]))


def _single(item: int, cost: int, parts: int) -> list[Part]:
    return [(cost, (item,)), *((0, ()) for _ in range(parts - 1))]


def _entry(number: int, solution: list[Part]) -> tuple[int, int, list[Part]]:
    """A heap entry: the widest spread first, then the oldest. Parts are kept from the heaviest to the lightest."""
    ordered = sorted(solution, key=lambda part: (-part[0], part[1]))
    return (ordered[-1][0] - ordered[0][0], number, ordered)
