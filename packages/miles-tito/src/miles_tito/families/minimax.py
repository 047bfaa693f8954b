"""MiniMax M2.5 and M2.7: reasoning is dropped from history after the next user turn, and no argument keeps it."""

from miles_tito.families.family import Family

MINIMAX_M2_5 = Family(
    name="minimax-m2.5",
    format="minimax_m2+think",
    stops=("[e~[",),
    engine_tool_parser="minimax-m2",
    engine_reasoning_parser="minimax",
)
MINIMAX_M2_7 = Family(
    name="minimax-m2.7",
    format="minimax_m2+think",
    stops=("[e~[",),
    engine_tool_parser="minimax-m2",
    engine_reasoning_parser="minimax",
)
