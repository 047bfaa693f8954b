"""The text a reward judges."""

import re

from miles_core.errors import RewardError
from miles_core.messages import text_of
from miles_core.prompt import Prompt
from miles_core.sample import Sample


def answer_of(sample: Sample) -> str:
    """Text of the last assistant message; empty when the assistant never spoke or its last message is only calls."""
    for message in reversed(sample.messages):
        if message.get("role") == "assistant":
            return text_of(message.get("content"))
    return ""


def label_of(prompt: Prompt) -> str:
    """The prompt's label as text; RewardError when it has none."""
    label = prompt.label
    if label is None or isinstance(label, dict | list):
        raise RewardError(f"prompt {prompt.prompt_id}: expected a label (text or a number), found {label!r}.")
    return str(label)


def last_boxed(text: str) -> str | None:
    r"""Content of the last complete `\boxed{...}` (or `\fbox{...}`), nested braces kept; None when there is none.

    One pass over the text, whatever it holds; escaped braces are text.
    """
    found = None
    opened: list[tuple[int, bool]] = []
    place = 0
    while place < len(text):
        letter = text[place]
        if letter == "\\":
            brace = _box_brace(text, place)
            if brace is None:
                place += 2
                continue
            opened.append((brace, True))
            place = brace
        elif letter == "{":
            opened.append((place, False))
        elif letter == "}" and opened:
            start, is_box = opened.pop()
            if is_box and (found is None or start > found[0]):
                found = (start, place)
        place += 1
    return None if found is None else text[found[0] + 1 : found[1]]


_BOX = re.compile(r"\\{1,2}(?:boxed|fbox) *\{")


def _box_brace(text: str, place: int) -> int | None:
    """Where the brace of a box that starts here opens; doubled backslashes of escaped text are accepted."""
    match = _BOX.match(text, place)
    return match.end() - 1 if match else None
