"""Settings of every transport. Importing this costs no torch."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from miles_core.config import Config
from miles_sync.deadlines import Deadlines


class SharedMemoryConfig(Config):
    """Engines on the trainer's machine read raw bytes from shared memory."""

    type: Literal["shared_memory"] = "shared_memory"
    bucket_bytes: int = Field(default=1 << 28, gt=0)
    """Bytes per segment; a tensor, or a group of tensors that engines fuse, larger than it travels alone."""
    pause: Literal["abort", "retract", "in_place"] = "retract"
    """What happens to requests that are running when a push starts."""
    deadlines: Deadlines = Deadlines()
    """How long each wait of a push may take."""


class DiskConfig(Config):
    """Engines read a folder of safetensors that is published by one rename."""

    type: Literal["disk"] = "disk"
    folder: Annotated[Path, Field(strict=False)]
    """Where versions are written, as `version-00000007`; no two senders share one."""
    files_from: Annotated[Path, Field(strict=False)] | None = None
    """A model folder whose files other than weights (config, tokenizer) are copied into each version."""
    bucket_bytes: int = Field(default=1 << 30, gt=0)
    """Bytes per safetensors file."""
    keep_last: int = Field(default=2, ge=1)
    """Versions that stay on disk."""
    pause: Literal["abort", "retract", "in_place"] = "retract"
    """What happens to requests that are running when a push starts."""
    deadlines: Deadlines = Deadlines()
    """How long each wait of a push may take."""


TransportConfig = SharedMemoryConfig | DiskConfig
"""Any transport's settings."""

WeightsConfig = Annotated[TransportConfig, Field(discriminator="type")]
"""Any transport's settings as a field of a configuration, chosen by `type`."""
