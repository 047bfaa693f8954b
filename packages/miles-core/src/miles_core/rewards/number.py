"""Exact numbers from the ways people and models write them."""

import re
from fractions import Fraction

MAX_DIGITS = 400
"""Longest numeral that is read; a longer one is text, so that no answer can make a comparison slow."""

_DECIMAL = r"\d+(?:,\d{3})+(?:\.\d+)?|\d+\.\d*|\.\d+|\d+"
_PLAIN = re.compile(rf"([+-]?)({_DECIMAL})(?:[eE]([+-]?\d{{1,3}}))?")
_RATIO = re.compile(rf"([+-]?(?:{_DECIMAL}))/([+-]?(?:{_DECIMAL}))")
_LATEX_FRACTION = re.compile(r"([+-]?)(\d*)\\[dtc]?frac(?:\{([^{}]*)\}|(\d))(?:\{([^{}]*)\}|(\d))")
_TIMES_TEN = re.compile(rf"([+-]?(?:{_DECIMAL}))(?:\\times|\\cdot|[*x×])10\^\{{?([+-]?\d{{1,3}})\}}?")
_IGNORED = ("\\left", "\\right", "\\!", "\\,", "\\;", "\\ ", "\\displaystyle", "$", "~", " ", "\n", "\t")


def tidy(text: str) -> str:
    r"""The answer without what does not change its value: spaces, `$`, `\left`, `\text`, a final full stop."""
    text = re.sub(r"\\(?:text|mathrm|textbf|mathbf)\{([^{}]*)\}", r"\1", text.strip())
    text = text.replace("\\%", "%").replace("−", "-").replace("\\$", "$").replace("\\(", "").replace("\\)", "")
    for ignored in _IGNORED:
        text = text.replace(ignored, "")
    return text.rstrip(".").removesuffix("^\\circ").removesuffix("^{\\circ}").removesuffix("%").replace("{,}", ",")


def number_of(text: str) -> Fraction | None:
    r"""The exact value of a numeral, ratio, `\frac`, mixed fraction or power of ten; None for anything else.

    `1,234.50`, `-3/4`, `2\frac{1}{2}`, `1.5e-3`, `3\times10^4`; a per cent sign is dropped, as answer keys do.
    """
    text = tidy(text)
    if len(text) > MAX_DIGITS:
        return None
    if match := _PLAIN.fullmatch(text):
        sign, digits, exponent = match.groups()
        value = _decimal(sign + digits)
        return value * Fraction(10) ** int(exponent) if exponent else value
    if match := _RATIO.fullmatch(text):
        return _divide(_decimal(match[1]), _decimal(match[2]))
    if match := _TIMES_TEN.fullmatch(text):
        return _decimal(match[1]) * Fraction(10) ** int(match[2])
    if match := _LATEX_FRACTION.fullmatch(text):
        return _latex_fraction(*match.groups())
    return None


def _decimal(digits: str) -> Fraction:
    return Fraction(digits.replace(",", "").removesuffix("."))


def _divide(above: Fraction | None, below: Fraction | None) -> Fraction | None:
    return above / below if above is not None and below else None


def _latex_fraction(
    sign: str, whole: str, above: str | None, above_digit: str | None, below: str | None, below_digit: str | None
) -> Fraction | None:
    value = _divide(number_of(above or above_digit or ""), number_of(below or below_digit or ""))
    if value is None:
        return None
    value += int(whole or "0")
    return -value if sign == "-" else value


_WRITTEN = r"\d+(?:,\d{3})+(?:\.\d+)?|\d+\.\d+|\.\d+|\d+"
_ANYWHERE = re.compile(rf"(?<![\w.])[+-]?(?:{_WRITTEN})(?:/(?:{_WRITTEN})|[eE][+-]?\d{{1,3}})?(?!\w)")


def last_number(text: str) -> str | None:
    """The last numeral or ratio in running text, as written; None when there is none."""
    found = None
    for match in _ANYWHERE.finditer(text):
        found = match.group()
    return found
