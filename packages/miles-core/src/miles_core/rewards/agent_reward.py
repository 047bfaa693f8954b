"""The reward that the agent itself reports."""

from collections.abc import Mapping

from miles_core.errors import RewardError
from miles_core.prompt import Prompt
from miles_core.sample import Sample


def agent_reward(sample: Sample, prompt: Prompt, *, key: str = "reward") -> float:
    """The number under `key` of what the agent returned (`sample.metadata["agent"]`); else RewardError."""
    returned = sample.metadata.get("agent")
    value = returned.get(key) if isinstance(returned, Mapping) else None
    if not isinstance(value, int | float):
        raise RewardError(f"expected the agent to return a mapping with a number under {key!r}, found {returned!r}.")
    return float(value)
