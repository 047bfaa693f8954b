"""What the local engine may use."""

from typing import Literal

from pydantic import Field

from miles_core.config import Config


class EngineConfig(Config):
    """Sizes and numerics of one engine."""

    context_length: int | None = Field(None, gt=1)
    """Most tokens of prompt and output together; the model's own limit when not given, and never above it."""
    max_running: int = Field(32, gt=0)
    """Requests that decode at the same time; each has a slot of `context_length` tokens in the cache."""
    cache_tokens: int | None = Field(None, gt=0)
    """Tokens that running requests may hold in the cache together; every slot filled when not given."""
    prefix_tokens: int = Field(65536, ge=0)
    """Tokens of finished prompts and answers kept for reuse; 0 turns reuse off."""
    chunk: int = Field(512, gt=0)
    """Most prompt tokens of one step, so that long prompts do not stall those that decode."""
    threads: int = Field(1, gt=0)
    """Threads of the forward pass."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Element type of weights and cache; only float32 is proved equal to the trainer bit for bit."""
    device: str = "cpu"
    """A torch device."""
    fused: bool = True
    """Use the fused forward pass where it gives the same bits as the model's own."""
    command_timeout_s: float = Field(120.0, gt=0)
    """Longest wait for the running step to end before a pause, commit or flush."""
