"""The formats turns are written in, by name: a syntax of calls, marks of reasoning, or both joined by "+".

`hermes`, `think`, `hermes+think`; `plain` has neither. A new syntax adds one file and one line.
"""

import difflib
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from miles_core.errors import TokenError
from miles_tito.parsers.marked import NO_CALLS, TurnSyntax

_PLACE = "miles_tito.parsers.syntaxes."
FORMATS = {
    "hermes": _PLACE + "json_marks:HERMES",
    "qwen3_coder": _PLACE + "qwen3_coder:QWEN3_CODER",
    "seed_oss": _PLACE + "qwen3_coder:SEED_OSS",
    "glm45": _PLACE + "glm:GLM45",
    "glm47": _PLACE + "glm:GLM47",
    "kimi_k2": _PLACE + "kimi_k2:KIMI_K2",
    "minimax_m2": _PLACE + "invoke:MINIMAX_M2",
    "deepseek_v32": _PLACE + "invoke:DEEPSEEK_V32",
    "deepseek_v4": _PLACE + "invoke:DEEPSEEK_V4",
    "deepseek_v31": _PLACE + "deepseek:DEEPSEEK_V31",
    "deepseek_v3": _PLACE + "deepseek:DEEPSEEK_V3",
    "harmony": _PLACE + "harmony:HARMONY",
    "mistral": _PLACE + "mistral:MISTRAL",
    "gemma4": _PLACE + "gemma:GEMMA4",
    "functiongemma": _PLACE + "gemma:FUNCTIONGEMMA",
    "apertus": _PLACE + "apertus:APERTUS",
    "cohere": _PLACE + "cohere:COHERE",
    "command_r": _PLACE + "cohere:COMMAND_R",
    "hunyuan": _PLACE + "json_marks:HUNYUAN",
    "internlm2": _PLACE + "json_marks:INTERNLM2",
    "phi4_mini": _PLACE + "json_marks:PHI4_MINI",
    "granite": _PLACE + "json_marks:GRANITE",
    "granite_20b": _PLACE + "json_marks:GRANITE_20B",
    "longcat": _PLACE + "json_marks:LONGCAT",
    "nemotron_nano_v2": _PLACE + "json_marks:NEMOTRON_NANO_V2",
    "gigachat": _PLACE + "json_marks:GIGACHAT",
    "lfm2": _PLACE + "pythonic:LFM2",
    "llama3_json": _PLACE + "llama3_json:LLAMA3_JSON",
    "pythonic": _PLACE + "pythonic:PYTHONIC",
}
"""Syntaxes of calls and where they lie, in the order in which a template is tried against them.

Of two with the same opening mark the one with a closing mark comes first: the other would leave that in the content.
"""

REASONING = {
    "think": ("<think>", "</think>"),
    "mistral_think": ("[THINK]", "[/THINK]"),
    "seed_think": ("<seed:think>", "</seed:think>"),
    "cohere_thinking": ("<|START_THINKING|>", "<|END_THINKING|>"),
    "gemma4_thought": ("<|channel>thought\n", "<channel|>"),
    "apertus_inner": ("<|inner_prefix|>", "<|inner_suffix|>"),
    "longcat_think": ("<longcat_think>", "</longcat_think>"),
    "kimi_think": ("◁think▷", "◁/think▷"),
    "thought": ("<thought>", "</thought>"),
    "reasoning": ("<reasoning>", "</reasoning>"),
}
"""Opening and closing mark of the reasoning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFormat:
    """How a turn is written. syntax: of its calls. reasoning: its opening and closing mark, empty for none."""

    name: str
    syntax: TurnSyntax = NO_CALLS
    reasoning: tuple[str, str] = ("", "")


PLAIN = TurnFormat(name="plain")
"""All text is content."""


@cache
def format_named(name: str) -> TurnFormat:
    """The format of this name; TokenError with the nearest one for a name that is unknown.

    `format_named(profile.format)` is the format a profile was derived with.
    """
    if name == PLAIN.name:
        return PLAIN
    syntax: TurnSyntax = NO_CALLS
    reasoning = ("", "")
    calls = thoughts = 0
    for part in name.split("+"):
        if part in FORMATS:
            syntax, calls = _load(FORMATS[part]), calls + 1
        elif part in REASONING:
            reasoning, thoughts = REASONING[part], thoughts + 1
        else:
            raise TokenError(f"expected the name of a turn format, found {name!r}; {_hint(part)}")
    if calls > 1 or thoughts > 1:
        raise TokenError(f"expected one syntax of calls and one of reasoning, found {name!r}.")
    return TurnFormat(name=name, syntax=syntax, reasoning=reasoning)


def _load(place: str) -> TurnSyntax:
    module, attribute = place.split(":")
    syntax: TurnSyntax = getattr(import_module(module), attribute)
    return syntax


def _hint(part: str) -> str:
    known = [*FORMATS, *REASONING, PLAIN.name]
    near = difflib.get_close_matches(part, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}."
