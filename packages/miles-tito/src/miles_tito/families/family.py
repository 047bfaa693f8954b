"""What a family adds to what is derived."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Data about models that share a chat template's conventions.

    format: name of the turn format (see `parsers.formats`). stops: tokens that end a turn, the usual one first; those
    that the vocabulary has are stops even when the model's files do not name them. template_kwargs: arguments of every
    render unless the caller gives others; where a template strips reasoning from history, the one that keeps it.
    engine_tool_parser, engine_reasoning_parser: names under which SGLang (0.5) knows the same formats, empty for none.
    """

    name: str
    format: str
    stops: tuple[str, ...]
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    engine_tool_parser: str = ""
    engine_reasoning_parser: str = ""
