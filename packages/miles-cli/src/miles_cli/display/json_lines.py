"""A run for machines: one JSON object a line."""

import json
from collections.abc import Mapping
from typing import Any, TextIO

from miles_cli.tracking.jsonl import finite


class JsonLinesDisplay:
    """Writes `{"event": "phase" | "step" | "note", ...}` lines; progress within a phase is left out."""

    def __init__(self, stream: TextIO) -> None:
        self._stream: TextIO | None = stream

    def phase(self, name: str, total: int) -> None:
        """`{"event": "phase", "name", "total"}`."""
        self._write({"event": "phase", "name": name, "total": total})

    def advance(self, done: int, tokens: int) -> None:
        """Left out: a reader of lines wants outcomes."""

    def step(self, metrics: Mapping[str, Any]) -> None:
        """`{"event": "step", ...the metrics}`."""
        self._write({"event": "step", **metrics})

    def note(self, text: str) -> None:
        """`{"event": "note", "text"}`."""
        self._write({"event": "note", "text": text})

    def close(self) -> None:
        """Write nothing more; the stream stays open."""
        self._stream = None

    def _write(self, record: Mapping[str, Any]) -> None:
        if self._stream is not None:
            self._stream.write(json.dumps(finite(record), allow_nan=False) + "\n")
            self._stream.flush()
