"""Families: a name, and the data that cannot be derived from a template. Derivation needs none of it.

A new family adds one file and one line.
"""

import difflib
from importlib import import_module

from miles_core.errors import TokenError
from miles_tito.families.family import Family

_PLACE = "miles_tito.families."
FAMILIES = {
    "qwen2.5": _PLACE + "qwen:QWEN2_5",
    "qwen3": _PLACE + "qwen:QWEN3",
    "qwen3-next": _PLACE + "qwen:QWEN3_NEXT",
    "qwen3.5": _PLACE + "qwen:QWEN3_5",
    "qwen3.6": _PLACE + "qwen:QWEN3_6",
    "glm-4.7": _PLACE + "glm:GLM_4_7",
    "glm-5": _PLACE + "glm:GLM_5",
    "kimi-k2.5": _PLACE + "kimi:KIMI_K2_5",
    "kimi-k2.6": _PLACE + "kimi:KIMI_K2_6",
    "minimax-m2.5": _PLACE + "minimax:MINIMAX_M2_5",
    "minimax-m2.7": _PLACE + "minimax:MINIMAX_M2_7",
    "nemotron-3": _PLACE + "nemotron:NEMOTRON_3",
    "deepseek-v3": _PLACE + "deepseek:DEEPSEEK_V3",
    "deepseek-v3.1": _PLACE + "deepseek:DEEPSEEK_V3_1",
    "deepseek-v3.2": _PLACE + "deepseek:DEEPSEEK_V3_2",
    "deepseek-v4": _PLACE + "deepseek:DEEPSEEK_V4",
    "gpt-oss": _PLACE + "gpt_oss:GPT_OSS",
    "llama-3": _PLACE + "llama:LLAMA_3",
    "mistral": _PLACE + "mistral:MISTRAL",
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
