"""Which lettered option was chosen?"""

import re

from miles_core.errors import RewardError
from miles_core.prompt import Prompt
from miles_core.rewards.answer import answer_of, last_boxed
from miles_core.sample import Sample

_NAMED = re.compile(
    r"(?:answer|choice|option)(?: is)?\s{0,9}[:=]?\s{0,9}[*(\[\"']{0,9}([A-Za-z])(?![A-Za-z'’])", re.IGNORECASE
)
_MARKED = re.compile(r"[(\[*]([A-Z])[)\]*]")
_ALONE = re.compile(r"(?<![\w'’])([A-Z])(?![\w'’])")


def choice_reward(sample: Sample, prompt: Prompt, *, choices: int = 26) -> float:
    """1.0 when the chosen letter is the label (a letter, or the option's number from 0), else 0.0."""
    return float(chosen(answer_of(sample), choices=choices) == _label(prompt))


def chosen(text: str, *, choices: int = 26) -> str | None:
    r"""The letter an answer chooses among the first `choices`, or None.

    In this order: the last `\boxed{C}`, the last "answer: C" or "option C", the last "(C)", the last letter on its own.
    Within one kind the last wins, for models think first and answer last.
    """
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[:choices]
    boxed = re.sub(r"\\text|[{}().\s]", "", last_boxed(text) or "").upper()
    if len(boxed) == 1 and boxed in letters:
        return boxed
    for pattern in (_NAMED, _MARKED, _ALONE):
        found = [letter.upper() for letter in pattern.findall(text) if letter.upper() in letters]
        if found:
            return found[-1]
    return None


def _label(prompt: Prompt) -> str:
    label = prompt.label
    if type(label) is int and 0 <= label < 26:
        return chr(ord("A") + label)
    text = label.strip().strip("().").upper() if isinstance(label, str) else ""
    if len(text) != 1 or not "A" <= text <= "Z":
        raise RewardError(f"prompt {prompt.prompt_id}: expected a label from A to Z or 0 to 25, found {label!r}.")
    return text
