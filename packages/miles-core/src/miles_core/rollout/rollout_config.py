"""What one step's rollouts are."""

from typing import Any

from pydantic import Field

from miles_core.config import Config
from miles_core.prompt import SamplingConfig


class FilterConfig(Config):
    """One group filter."""

    name: str = Field(min_length=1)
    """A built-in name, an entry point of `miles.group_filters`, `module:attribute` or `file.py:attribute`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the filter."""


class RolloutConfig(Config):
    """How many rollouts a step has, and how each is made."""

    prompts_per_step: int = Field(gt=0)
    """Prompts drawn for a step: groups of a training batch."""
    samples_per_prompt: int = Field(gt=0)
    """Rollouts of each prompt: the size of a group."""
    generate: str = "agent"
    """The generate function: `agent`, `single_turn` or a plug-in."""
    agent: str | None = None
    """The agent that the generate function `agent` runs, as `module:attribute` or `file.py:attribute`."""
    on_abort: str | None = None
    """Called after a rollout of `agent` failed, to release what the agent holds elsewhere: `module:attribute` or
    `file.py:attribute`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Further options of the generate function."""
    sampling: SamplingConfig = SamplingConfig()  # type: ignore[call-arg]
    """Pinned for every turn of every rollout."""
    max_concurrency: int = Field(64, gt=0)
    """Rollouts in flight at once; has no influence on any number."""
    timeout_s: float = Field(300.0, gt=0)
    """Deadline of one rollout. A prompt with `timeout_s` among its metadata has that one."""
    max_seq_len: int = Field(4096, gt=1)
    """Most tokens of one trajectory."""
    max_aborted_fraction: float = Field(0.5, ge=0, le=1)
    """The run stops when more than this fraction of a step's rollouts failed."""
    filters: tuple[FilterConfig, ...] = ()
    """Asked in order; the first that drops a group gives the reason."""
    refill: int = Field(0, ge=0)
    """Most extra prompts that a step draws to replace dropped groups; with 0 it trains on fewer groups."""
