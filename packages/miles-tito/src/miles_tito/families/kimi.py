"""Kimi K2.5 and K2.6: calls carry ids of their own (`functions.name:0`) that must come back verbatim."""

from miles_tito.families.family import Family

KIMI_K2_5 = Family(
    name="kimi-k2.5",
    format="kimi_k2+think",
    stops=("<|im_end|>",),
    engine_tool_parser="kimi_k2",
    engine_reasoning_parser="kimi_k2",
)
KIMI_K2_6 = Family(
    name="kimi-k2.6",
    format="kimi_k2+think",
    stops=("<|im_end|>",),
    template_kwargs={"preserve_thinking": True},
    engine_tool_parser="kimi_k2",
    engine_reasoning_parser="kimi_k2",
)
