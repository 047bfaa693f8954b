"""Families: a name, and the data that cannot be derived from a template. Derivation needs none of it.

A new family adds one file and one line.
"""

import difflib
from importlib import import_module

from miles_core.errors import TokenError
from miles_tito.families.family import Family

FAMILIES = {
    "qwen3": "miles_tito.families.qwen:QWEN3",
    "qwen3.5": "miles_tito.families.qwen:QWEN3_5",
    "qwen3.6": "miles_tito.families.qwen:QWEN3_6",
    "qwen3-next": "miles_tito.families.qwen:QWEN3_NEXT",
}
"""Family names and where their data lies."""


def family_named(name: str) -> Family:
    """The family's data; TokenError with the nearest name for an unknown one."""
    place = FAMILIES.get(name)
    if place is None:
        near = difflib.get_close_matches(name, FAMILIES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(FAMILIES)}."
        raise TokenError(f'expected a family\'s name or "auto", found {name!r}; {hint}')
    module, attribute = place.split(":")
    found = getattr(import_module(module), attribute)
    if not isinstance(found, Family):
        raise TypeError(f"{place} is no Family")
    return found


__all__ = ["FAMILIES", "Family", "family_named"]
