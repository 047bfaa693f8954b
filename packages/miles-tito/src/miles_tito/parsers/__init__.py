"""From sampled ids to a message: content, reasoning and tool calls, whole or as they stream."""

from miles_tito.parsers.formats import TurnFormat, format_named
from miles_tito.parsers.stream import Delta, StreamParser

__all__ = ["Delta", "StreamParser", "TurnFormat", "format_named"]
