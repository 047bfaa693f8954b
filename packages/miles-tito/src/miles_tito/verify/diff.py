"""The first divergence of two texts, for people: control tokens set apart, white space shown."""

import re
from collections.abc import Sequence

from miles_tito.errors import Divergence
from miles_tito.marks import CLOSE, OPEN, Marker

_WIDTH = 160
_SHOWN = {"\n": "⏎", "\t": "⇥", "\r": "␍", "\u00a0": "⍽"}


def diff_lines(divergence: Divergence, marker: Marker) -> tuple[str, ...]:
    """Lines of a diff: two spaces for what both texts share just before, `-` the whole render, `+` what was grown.

    A control token stands in ⟦ ⟧; text that only spells one does not. Line ends are ⏎, spaces at an end of a line ·.
    """
    before, expected, found = _at_token(divergence, marker)
    return (
        *(f"  {line}" for line in _lines(before, marker)[-3:]),
        *(f"- {line}" for line in _lines(expected, marker) or ["(nothing)"]),
        *(f"+ {line}" for line in _lines(found, marker) or ["(nothing)"]),
    )


def shown(text: str, marker: Marker) -> str:
    """The text on one line, as `diff_lines` shows it."""
    return " ".join(_lines(text, marker))


def _at_token(divergence: Divergence, marker: Marker) -> tuple[str, str, str]:
    """Context and both texts, the border moved to the start of a control token that it would cut."""
    before, cut = divergence.before, len(divergence.before)
    for text in (divergence.expected, divergence.found):
        spans = (token.span() for token in marker.written(before + text))
        cut = min([cut, *(start for start, end in spans if start < len(before) < end)])
    return before[:cut], before[cut:] + divergence.expected, before[cut:] + divergence.found


def _lines(text: str, marker: Marker) -> Sequence[str]:
    parts: list[str] = []
    cursor = 0
    for token in marker.written(text):
        parts += [text[cursor : token.start()], f"⟦{token[0]}⟧"]
        cursor = token.end()
    whole = "".join([*parts, text[cursor:]]).replace(OPEN, "").replace(CLOSE, "")
    return [_visible(line) for line in whole.splitlines(keepends=True)]


def _visible(line: str) -> str:
    if len(line) > _WIDTH:
        line = f"{line[: _WIDTH - 20]} … {line[-17:]}"
    line = re.sub(r" +(?=[\n\r]|$)|^ +", lambda spaces: "·" * len(spaces[0]), line)
    return "".join(_SHOWN.get(c, c if c.isprintable() else f"\\x{ord(c):02x}") for c in line)
