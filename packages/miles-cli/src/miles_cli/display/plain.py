"""A run where there is no terminal: a line per step and per note."""

from collections.abc import Mapping
from typing import Any, TextIO

from miles_cli.tracking.console import step_line


class PlainDisplay:
    """Writes plain lines; the phases that every step has are part of its line, any other has a line of its own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream: TextIO | None = stream

    def phase(self, name: str, total: int) -> None:
        """Say what is done where that may take long: anything but the phases that every step has."""
        if name not in ("rollout", "train", "push", "save"):
            self._write(f"{name} ...")

    def advance(self, done: int, tokens: int) -> None:
        """Left out: a log needs outcomes."""

    def step(self, metrics: Mapping[str, Any]) -> None:
        """The step's line."""
        self._write(step_line(metrics))

    def note(self, text: str) -> None:
        """The text as it is."""
        self._write(text)

    def close(self) -> None:
        """Write nothing more; the stream stays open."""
        self._stream = None

    def _write(self, line: str) -> None:
        if self._stream is not None:
            self._stream.write(line + "\n")
            self._stream.flush()
