"""Marks around text that looks like a control token but was written by a caller.

A marked text carries every look-alike between two Unicode noncharacters, so that a control token the template itself
writes and one that a user or a tool spelled out are never confused. `unmarked` gives the text a template would render.
"""

import copy
import re
from collections.abc import Iterable, Mapping
from typing import Any

OPEN, CLOSE = "\ufdd0", "\ufdd1"
_ANY = re.compile(f"[{OPEN}{CLOSE}]")


class Marker:
    """Marks the control tokens of one vocabulary."""

    def __init__(self, controls: Iterable[str], structural: Iterable[str] | None = None) -> None:
        controls = tuple(controls)
        self.forbidden: tuple[str, ...] = controls
        """The control tokens that callers may not write."""
        self._control = _any_of(controls)
        self._structural = self._control if structural is None else _any_of(structural)
        self._callers = self._control

    def trusting(self) -> "Marker":
        """The marker for callers who mean the control tokens that they write; an assistant's stay marked."""
        other = copy.copy(self)
        other._callers = _any_of(())
        other.forbidden = ()
        return other

    def found_in(self, value: Any) -> bool:
        """True when a string anywhere inside the callers' JSON value contains a control token."""
        return any(map(self._callers.search, strings_of(value, keys=True)))

    def mark(self, value: Any) -> Any:
        """A copy of the JSON value with every control token in its strings, keys included, marked."""
        return _mark(value, self._control)

    def mark_callers(self, value: Any) -> Any:
        """`mark` for what callers wrote."""
        return _mark(value, self._callers)

    def foreign(self, message: Mapping[str, Any]) -> bool:
        """True when the message holds a control token that its author cannot have meant as one.

        An assistant may write the vocabulary's ordinary control tokens (`<think>`), but not its special ones.
        """
        pattern = self._structural if message["role"] == "assistant" else self._callers
        return any(map(pattern.search, strings_of(message, keys=True)))

    def mark_message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The message with what `foreign` looks for marked."""
        pattern = self._structural if message["role"] == "assistant" else self._callers
        return {**_mark(message, pattern), "role": message["role"]}

    def first(self, text: str, start: int = 0) -> re.Match[str] | None:
        """The first control token at or after `start` that is not marked."""
        for found in self._control.finditer(text, start):
            if not text.startswith(OPEN, found.start() - 1) or found.start() == 0:
                return found
        return None

    def written(self, text: str) -> list[re.Match[str]]:
        """Every control token of the text that is not marked."""
        return [m for m in self._control.finditer(text) if m.start() == 0 or text[m.start() - 1] != OPEN]

    def regions(self, text: str) -> list[tuple[str, bool]]:
        """Split a marked text into `(unmarked text, plain)`; plain regions hold look-alikes and no control token.

        A plain region reaches from one control token of the template to the next, so that marks never part a word.
        """
        if OPEN not in text:
            return [(text, False)]
        regions: list[tuple[str, bool]] = []
        cursor = 0
        for control in [*self.written(text), None]:
            between = text[cursor : control.start() if control else len(text)]
            if OPEN in between:
                regions.append((unmarked(between), True))
            elif between:
                _add_live(regions, between)
            if control:
                _add_live(regions, control[0])
                cursor = control.end()
        return regions

    def place(self, text: str, written: Iterable[str]) -> str | None:
        """Mark the control tokens in those parts of `text` that callers wrote, in order; None if one is missing."""
        parts: list[str] = []
        cursor = 0
        for content in written:
            if not self._callers.search(content):
                continue
            wanted = content if text.find(content, cursor) >= 0 else content.strip()
            at = text.find(wanted, cursor)
            if at < 0:
                return None
            parts += [text[cursor:at], str(self.mark_callers(wanted))]
            cursor = at + len(wanted)
        return "".join(parts) + text[cursor:]


def _any_of(tokens: Iterable[str]) -> re.Pattern[str]:
    ordered = sorted({token for token in tokens if token}, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered)) or "(?!)")


def _mark(value: Any, pattern: re.Pattern[str]) -> Any:
    if isinstance(value, str):
        return pattern.sub(lambda found: f"{OPEN}{found[0]}{CLOSE}", value)
    if isinstance(value, Mapping):
        return {_mark(key, pattern): _mark(item, pattern) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mark(item, pattern) for item in value]
    return value


def unmarked(text: str) -> str:
    """The text without its marks."""
    return _ANY.sub("", text) if OPEN in text or CLOSE in text else text


def strings_of(value: Any, *, keys: bool = False) -> list[str]:
    """Every string inside a JSON value in order, keys left out unless asked for."""
    found: list[str] = []
    _collect(value, found, keys)
    return found


def _collect(value: Any, found: list[str], keys: bool) -> None:
    if isinstance(value, str):
        found.append(value)
    elif isinstance(value, dict):
        if keys:
            found.extend(key for key in value if isinstance(key, str))
        for item in value.values():
            _collect(item, found, keys)
    elif isinstance(value, list | tuple):
        for item in value:
            _collect(item, found, keys)
    elif isinstance(value, Mapping):
        _collect(dict(value), found, keys)


def _add_live(regions: list[tuple[str, bool]], text: str) -> None:
    if regions and not regions[-1][1]:
        regions[-1] = (regions[-1][0] + text, False)
    else:
        regions.append((text, False))
