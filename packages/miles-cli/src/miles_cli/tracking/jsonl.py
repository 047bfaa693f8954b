"""The metrics file: one JSON object a line, one line a step."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from miles_core.errors import DataError


class JsonlTracker:
    """Appends a line per step and flushes it to the disk before `log` returns.

    Values that JSON cannot hold (NaN, infinities) become null. Everything under "time" may differ between equal runs,
    nothing else does; keys keep the order in which they are logged.
    """

    def __init__(self, path: Path, *, resume_step: int | None = None) -> None:
        """A new file; with `resume_step`, the lines of earlier steps are kept and everything after them is dropped."""
        kept = [] if resume_step is None else [line for line in read_metrics(path) if line["step"] < resume_step]
        path.parent.mkdir(parents=True, exist_ok=True)
        work = path.with_name(f".{path.name}.new")
        work.write_text("".join(map(_line, kept)), encoding="utf-8")
        work.replace(path)
        self._file: TextIO | None = path.open("a", encoding="utf-8")

    def start(self, config: Mapping[str, Any]) -> None:
        """Nothing to do: the configuration lies beside the file."""

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Append the line `{"step": step, **metrics}`."""
        if self._file is None:
            raise ValueError("the metrics file is closed")
        self._file.write(_line({"step": step, **metrics}))
        self._file.flush()
        os.fsync(self._file.fileno())

    def finish(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file in order, none when there is no file.

    A last line without its newline is what a killed process left: it is skipped. DataError names any other broken line.
    """
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [_parse(line, path, number) for number, line in enumerate(lines[:-1], start=1)]


def _parse(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise DataError(f"{path}, line {number}: expected a JSON object: {error}.") from error
    if not isinstance(record, dict) or not isinstance(record.get("step"), int):
        raise DataError(f"{path}, line {number}: expected an object with an integer step.")
    return record


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(finite(record), allow_nan=False) + "\n"


def finite(value: Any) -> Any:
    """The value with every float that JSON cannot hold replaced by None, at any depth."""
    if isinstance(value, Mapping):
        return {str(key): finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
