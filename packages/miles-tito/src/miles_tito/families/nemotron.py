"""Nemotron 3: ChatML with Qwen3-Coder's calls."""

from miles_tito.families.family import Family

NEMOTRON_3 = Family(
    name="nemotron-3",
    format="qwen3_coder+think",
    stops=("<|im_end|>",),
    template_kwargs={"truncate_history_thinking": False},
    engine_tool_parser="qwen3_coder",
    engine_reasoning_parser="nemotron_3",
)
