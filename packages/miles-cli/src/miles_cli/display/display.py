"""What every display can do."""

from collections.abc import Mapping
from typing import Any, Protocol


class Display(Protocol):
    """Shows one run. All calls come from one thread."""

    def phase(self, name: str, total: int) -> None:
        """A phase begins (`rollout`, `train`, `push`, `save` or any other word); the one before is over.

        total: what `advance` counts up to, 0 when unknown.
        """
        ...

    def advance(self, done: int, tokens: int) -> None:
        """How far the phase is, and the tokens it has handled: both counted from the phase's begin."""
        ...

    def step(self, metrics: Mapping[str, Any]) -> None:
        """A step is done; a record of the metrics file, `step` and `weight_version` in it."""
        ...

    def note(self, text: str) -> None:
        """Something a reader should know, such as an engine that was lost."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was; further calls show nothing, and closing again is allowed."""
        ...
