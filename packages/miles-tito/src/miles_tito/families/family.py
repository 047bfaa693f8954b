"""What a family adds to what is derived."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from miles_tito.parsers.formats import TurnFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """template_kwargs: arguments of every render unless the caller gives others. turn_format: how turns are parsed.

    engine_tool_parser, engine_reasoning_parser: the names under which SGLang knows the same formats.
    """

    name: str
    turn_format: TurnFormat
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    engine_tool_parser: str = ""
    engine_reasoning_parser: str = ""
