"""What a run shows and writes while it goes: display, metrics file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class RunObserver:
    """Shows phases and steps, and appends each step's record to the metrics file."""

    def __init__(self, metrics: Path, *, total_steps: int) -> None:
        self._metrics = metrics
        self._total = total_steps

    def phase(self, name: str, total: int) -> None:
        """A phase of a step begins."""

    def advance(self, done: int, tokens: int) -> None:
        """The running phase's progress."""

    def note(self, text: str) -> None:
        """Something the user should know."""
        print(text, flush=True)

    def step(self, record: Mapping[str, Any]) -> None:
        """A step is done."""
        with self._metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
        print({k: v for k, v in record.items()}, flush=True)

    def close(self) -> None:
        """The run is over."""
