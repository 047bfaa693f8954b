"""Does the final answer equal the label, as a number or as mathematics?"""

import re
from importlib.util import find_spec

from miles_core.prompt import Prompt
from miles_core.rewards.answer import answer_of, label_of, last_boxed
from miles_core.rewards.number import last_number, number_of, tidy
from miles_core.sample import Sample

_FINAL = re.compile(r"####[ \t]*(.+)|answer(?: is)?\s{0,9}[:=]?\s{0,9}\$?([^\n$]+)", re.IGNORECASE)
MAX_ANSWER = 2000
"""Most characters of an answer that symbolic checking reads, from its end."""


def math_reward(sample: Sample, prompt: Prompt, *, tolerance: float = 0.0) -> float:
    r"""1.0 when the answer equals the label, else 0.0.

    The answer is the last `\boxed{...}` of the last assistant message, else what follows the last `####` or "answer",
    else its last number. Numbers are compared as exact fractions (or within the relative `tolerance`); what is no
    plain number is compared as text without spacing, then by math-verify when it is installed (extra `math`).
    """
    text, label = answer_of(sample), label_of(prompt)
    gold = last_boxed(label) or label
    candidates = _candidates(text)
    if any(equal(candidate, gold, tolerance=tolerance) for candidate in candidates[:1]):
        return 1.0
    if number_of(gold) is not None and any(number_of(candidate) is not None for candidate in candidates):
        first = next(c for c in candidates if number_of(c) is not None)
        return float(equal(first, gold, tolerance=tolerance))
    return float(bool(text) and _symbolically_equal(text[-MAX_ANSWER:], gold))


def _candidates(text: str) -> list[str]:
    """Readings of the final answer, the most explicit first."""
    boxed = last_boxed(text)
    if boxed is not None:
        return [boxed]
    found = [next(part for part in match.groups() if part is not None) for match in _FINAL.finditer(text)]
    named = [re.split(r"\.\s", found[-1], maxsplit=1)[0]] if found else []
    number = last_number(named[0]) if named else None
    return [c for c in (*named, number, last_number(text), text) if c]


def equal(answer: str, label: str, *, tolerance: float = 0.0) -> bool:
    """Equal as exact numbers (within the relative tolerance) where both are numbers, else equal as tidied text."""
    ours, theirs = number_of(answer), number_of(label)
    if ours is not None and theirs is not None:
        return abs(ours - theirs) <= tolerance * abs(theirs)
    return tidy(answer) != "" and tidy(answer) == tidy(label)


def _symbolically_equal(answer: str, label: str) -> bool:
    if find_spec("math_verify") is None:
        return False
    from math_verify import parse, verify  # noqa: PLC0415 - an optional extra, and sympy takes a second to import

    # The reward's own deadline holds in a killable worker; the library's would need the main thread's alarm.
    gold = parse(f"${label}$", parsing_timeout=None)
    found = parse(answer, parsing_timeout=None)
    return bool(verify(gold, found, timeout_seconds=None))
