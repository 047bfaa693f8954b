"""DeepSeek V3 to V4: the form of calls changed with almost every release, the end of a turn never did."""

from miles_tito.families.family import Family

_STOPS = ("<｜end▁of▁sentence｜>",)

DEEPSEEK_V3 = Family(name="deepseek-v3", format="deepseek_v3", stops=_STOPS, engine_tool_parser="deepseekv3")
DEEPSEEK_V3_1 = Family(
    name="deepseek-v3.1",
    format="deepseek_v31+think",
    stops=_STOPS,
    engine_tool_parser="deepseekv31",
    engine_reasoning_parser="deepseek-v3",
)
DEEPSEEK_V3_2 = Family(
    name="deepseek-v3.2",
    format="deepseek_v32+think",
    stops=_STOPS,
    engine_tool_parser="deepseekv32",
    engine_reasoning_parser="deepseek-v3",
)
DEEPSEEK_V4 = Family(
    name="deepseek-v4",
    format="deepseek_v4+think",
    stops=_STOPS,
    template_kwargs={"drop_thinking": False, "enable_thinking": True},
    engine_tool_parser="deepseekv4",
    engine_reasoning_parser="deepseek-v4",
)
