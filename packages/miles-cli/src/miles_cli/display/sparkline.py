"""A row of numbers as a row of blocks."""

from collections.abc import Sequence

_BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], *, width: int) -> str:
    """One character per value, the lowest value lowest; more than `width` values are averaged in equal runs of steps.

    Equal values are shown at the lowest height.
    """
    if not values or width < 1:
        return ""
    columns = min(width, len(values))
    means = [_mean(values[c * len(values) // columns : (c + 1) * len(values) // columns]) for c in range(columns)]
    low, high = min(means), max(means)
    if high == low:
        return _BLOCKS[0] * columns
    return "".join(_BLOCKS[min(int((m - low) / (high - low) * len(_BLOCKS)), len(_BLOCKS) - 1)] for m in means)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
