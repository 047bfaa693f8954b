"""Token overlap with a reference answer."""

import re
from collections import Counter

from miles_core.errors import RewardError
from miles_core.prompt import Prompt
from miles_core.rewards.answer import answer_of
from miles_core.sample import Sample

_ARTICLES = frozenset({"a", "an", "the"})


def f1_reward(sample: Sample, prompt: Prompt) -> float:
    """F1 of the bags of words of the last assistant message and the label; with a list of labels, the best of them.

    Words are lower-cased, punctuation and English articles are dropped (SQuAD's evaluation). Two empty bags give 1.
    """
    labels = prompt.label if isinstance(prompt.label, list) else [prompt.label]
    if not labels or any(label is None or isinstance(label, dict | list) for label in labels):
        raise RewardError(f"prompt {prompt.prompt_id}: expected a label or a list of labels, found {prompt.label!r}.")
    answer = words(answer_of(sample))
    return max(f1(answer, words(str(label))) for label in labels)


def words(text: str) -> list[str]:
    """Lower-cased words without punctuation and articles."""
    return [word for word in re.findall(r"\w+", text.lower()) if word not in _ARTICLES]


def f1(answer: list[str], label: list[str]) -> float:
    """2PR / (P + R) over the multiset intersection."""
    if not answer or not label:
        return float(answer == label)
    shared = (Counter(answer) & Counter(label)).total()
    return 2 * shared / (len(answer) + len(label))
