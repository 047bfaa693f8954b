"""Where a run continues: the position kept inside the newest whole checkpoint."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from miles_cli.pipeline.loop import Position
from miles_core.errors import TrainError
from miles_megatron.checkpoint import CheckpointStore

FILE = "position.json"


def latest(store: CheckpointStore) -> tuple[Position, Path] | None:
    """The newest checkpoint, checked file by file, and the position in it; None when none was published yet."""
    folder = store.latest()
    return None if folder is None else (read_position(folder), folder)


def write_position(folder: Path, position: Position) -> None:
    """Keep the position in a checkpoint that is being written."""
    (folder / FILE).write_text(json.dumps(asdict(position), indent=1) + "\n", encoding="utf-8")


def read_position(folder: Path) -> Position:
    """The position that `write_position` kept. Raises TrainError."""
    try:
        found: Mapping[str, Any] = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return Position(**found)
    except (OSError, ValueError, TypeError) as error:
        raise TrainError(f"checkpoint {folder}: expected the position of the run in {FILE}: {error}.") from error
