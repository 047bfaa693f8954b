"""Cohere: `<|START_ACTION|>[{"tool_call_id", "tool_name", "parameters"}]<|END_ACTION|>`, or an `Action:` code block."""

from miles_tito.parsers.marked import CallSyntax
from miles_tito.parsers.syntaxes.json_marks import json_reader

COHERE = CallSyntax(
    opening="<|START_ACTION|>",
    closing="<|END_ACTION|>",
    read=json_reader("<|END_ACTION|>", names=("tool_name", "name"), ids=("tool_call_id",)),
    silent=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
)
COMMAND_R = CallSyntax(
    opening="Action:\n```json\n", closing="```", read=json_reader("```", names=("tool_name", "name"))
)
"""Command R; the content ends where the block begins."""
