"""What the session log can be told."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, Strict

from miles_core.config import Config


class LogConfig(Config):
    """Options of the session log."""

    folder: Annotated[Path, Strict(False)]
    """Where it lies; servers that share sessions share it."""
    shards: int | None = Field(default=None, ge=1, le=4096)
    """Parts that processes own separately, fixed when the folder is made. None takes those that the folder has,
    and makes 1 in a new one, or 64 for several processes."""
    owner_wait_s: float = Field(default=15.0, ge=0)
    """Longest that a starting server waits for the one before it to end and give the folder up."""
    fsync: Literal["none", "interval", "always"] = "interval"
    """When records are forced to the disk, which matters for a crash of the machine; the end of the process alone loses
    none of them. `interval`: every `fsync_interval_s`. `always`: before an answer ends, one sync for all that wait."""
    fsync_interval_s: float = Field(default=1.0, gt=0)
    """Time between two syncs."""
    segment_bytes: int = Field(default=64 << 20, ge=1 << 12)
    """Size at which a segment file is followed by a new one."""
    compact_s: float = Field(default=30.0, gt=0)
    """Time between two looks for segments that ended sessions fill."""
