"""Several filters as one."""

from collections.abc import Sequence

from miles_core.protocols import GroupFilter, Verdict
from miles_core.sample import Group


class Chain:
    """Keeps a group that every filter keeps; the first one that drops it gives the reason. Empty, it keeps all."""

    def __init__(self, filters: Sequence[GroupFilter]) -> None:
        self._filters = tuple(filters)

    def __call__(self, group: Group) -> Verdict:
        """The verdict of the first filter that drops the group, else keep."""
        for judge in self._filters:
            verdict = judge(group)
            if not verdict.keep:
                return verdict
        return Verdict(True)
