"""How many calls a worker may have more than its peers before it loses its preference."""

from collections.abc import Sequence

from miles_router.worker import Worker


def within_bound(candidates: Sequence[Worker], *, factor: float, slack: int) -> list[Worker]:
    """The candidates on which one more call stays within `factor` times the mean load, plus `slack` calls.

    The mean counts the new call (Mirrokni, Thorup and Zadimoghaddam 2018). Never empty for factor >= 1: the least
    active candidate is at or under the mean.
    """
    bound = factor * (sum(worker.active for worker in candidates) + 1) / len(candidates) + slack
    least = min(worker.active for worker in candidates)
    return [worker for worker in candidates if worker.active + 1 <= bound or worker.active == least]
