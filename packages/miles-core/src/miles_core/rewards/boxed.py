r"""Is the content of the last `\boxed{...}` the label?"""

from miles_core.prompt import Prompt
from miles_core.rewards.answer import answer_of, label_of, last_boxed
from miles_core.rewards.math import equal
from miles_core.sample import Sample


def boxed_reward(sample: Sample, prompt: Prompt, *, format_reward: float = 0.0) -> float:
    r"""1.0 when the last `\boxed{...}` equals the label as a number or text, else `format_reward`; 0 without a box."""
    content = last_boxed(answer_of(sample))
    if content is None:
        return 0.0
    label = label_of(prompt)
    return 1.0 if equal(content, last_boxed(label) or label) else float(format_reward)
