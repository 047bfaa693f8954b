"""The text a reward judges."""

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
    r"""Content of the last complete `\boxed{...}` (or `\fbox{...}`), nested braces kept; None when there is none."""
    found = None
    for opener in (r"\boxed", r"\fbox"):
        start = text.rfind(opener)
        while start >= 0:
            content = _braced(text, start + len(opener))
            if content is not None:
                if found is None or start > found[0]:
                    found = (start, content)
                break
            start = text.rfind(opener, 0, start)
    return found[1] if found else None


def _braced(text: str, start: int) -> str | None:
    """What the braces that open at `start` (after spaces) enclose; None when none open there or they never close."""
    while start < len(text) and text[start] == " ":
        start += 1
    if start >= len(text) or text[start] != "{":
        return None
    depth, place = 0, start
    while place < len(text):
        if text[place] == "\\":
            place += 2
            continue
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[start + 1 : place]
        place += 1
    return None
