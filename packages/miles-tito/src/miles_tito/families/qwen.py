"""Qwen3 and its successors whose calls are JSON in `<tool_call>`."""

from miles_tito.families.family import Family
from miles_tito.parsers.formats import HERMES

QWEN3 = Family(name="qwen3", turn_format=HERMES, engine_tool_parser="qwen25", engine_reasoning_parser="qwen3")
QWEN3_5 = Family(name="qwen3.5", turn_format=HERMES, engine_tool_parser="qwen3_coder", engine_reasoning_parser="qwen3")
QWEN3_6 = Family(
    name="qwen3.6",
    turn_format=HERMES,
    template_kwargs={"preserve_thinking": True},
    engine_tool_parser="qwen3_coder",
    engine_reasoning_parser="qwen3",
)
QWEN3_NEXT = Family(name="qwen3-next", turn_format=HERMES, engine_tool_parser="qwen25", engine_reasoning_parser="qwen3")
