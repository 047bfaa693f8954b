"""A reward without meaning, for control runs."""

from miles_core.prompt import Prompt
from miles_core.sample import Sample
from miles_core.seeds import derive


def random_reward(sample: Sample, prompt: Prompt, *, seed: int = 0) -> float:
    """Uniform in [0, 1), a function of the seed and the rollout's id alone."""
    return derive(seed, "random_reward", sample.rollout_id) / 2**63
