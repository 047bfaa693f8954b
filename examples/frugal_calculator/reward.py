"""A reward of one's own: the right answer, less something for every call that was wasted."""

from typing import Any

from miles_core.messages import text_of
from miles_core.prompt import Prompt
from miles_core.sample import Sample


async def frugal(sample: Sample, prompt: Prompt, *, cost: float = 0.25, **options: Any) -> float:
    """1 for the right last message and 0 for a wrong one, less `cost` for each wasted call; never below 0."""
    answer = text_of(sample.messages[-1].get("content")).strip() if sample.messages else ""
    wasted = sample.metadata["agent"]["wasted_calls"]
    return max(float(answer == str(prompt.label)) - cost * wasted, 0.0)
