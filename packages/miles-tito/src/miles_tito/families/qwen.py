"""Qwen2.5 to Qwen3.6: ChatML. Calls are JSON up to Qwen3 and Qwen3-Next, XML of parameters from 3.5 on."""

from miles_tito.families.family import Family

_STOPS = ("<|im_end|>", "<|endoftext|>")

QWEN2_5 = Family(name="qwen2.5", format="hermes", stops=_STOPS, engine_tool_parser="qwen25")
QWEN3 = Family(
    name="qwen3",
    format="hermes+think",
    stops=_STOPS,
    engine_tool_parser="qwen25",
    engine_reasoning_parser="qwen3",
)
QWEN3_NEXT = Family(
    name="qwen3-next",
    format="hermes+think",
    stops=_STOPS,
    engine_tool_parser="qwen25",
    engine_reasoning_parser="qwen3",
)
QWEN3_5 = Family(
    name="qwen3.5",
    format="qwen3_coder+think",
    stops=_STOPS,
    engine_tool_parser="qwen3_coder",
    engine_reasoning_parser="qwen3",
)
QWEN3_6 = Family(
    name="qwen3.6",
    format="qwen3_coder+think",
    stops=_STOPS,
    template_kwargs={"preserve_thinking": True},
    engine_tool_parser="qwen3_coder",
    engine_reasoning_parser="qwen3",
)
