"""What a run shows and writes while it goes, and what it leaves at its end."""

import sys
import time
from collections.abc import Mapping
from typing import Any

from miles_cli.display.choose import choose
from miles_cli.pipeline.run_folder import RunFolder
from miles_cli.report.html import write_report
from miles_cli.report.summary import write_summary
from miles_cli.tracking.jsonl import JsonlTracker


class RunObserver:
    """Display and metrics file of one run. first_step: where the run starts; later lines of the metrics are dropped.

    origin: `time.monotonic()` when the command started.
    """

    def __init__(
        self, folder: RunFolder, *, name: str, steps: int, first_step: int, as_json: bool, origin: float
    ) -> None:
        self._folder, self._origin = folder, origin
        self._display = choose(sys.stdout, json=as_json, title=name, steps=steps)
        self._metrics = JsonlTracker(folder.metrics, resume_step=first_step)
        self._logged = first_step

    def phase(self, name: str, total: int) -> None:
        """A phase begins."""
        self._display.phase(name, total)

    def advance(self, done: int, tokens: int) -> None:
        """Progress within the phase."""
        self._display.advance(done, tokens)

    def note(self, text: str) -> None:
        """Something the user should know."""
        self._display.note(text)

    def step(self, record: Mapping[str, Any]) -> None:
        """A step is done: shown, and on disk before this returns."""
        self._metrics.log({key: value for key, value in record.items() if key != "step"}, record["step"])
        self._display.step(record)
        self._logged = record["step"] + 1

    def close(self) -> None:
        """Give the terminal back and, when there is anything to tell, write summary and report."""
        self._metrics.finish()
        try:
            if self._logged:
                write_summary(self._folder.path, wall_s=time.monotonic() - self._origin)
                self._display.note(f"report: {write_report(self._folder.path)}")
        finally:
            self._display.close()
