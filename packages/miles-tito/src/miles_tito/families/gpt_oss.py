"""gpt-oss: harmony channels. `<|end|>` ends a channel inside a turn and is no stop, though history closes turns so."""

from miles_tito.families.family import Family

GPT_OSS = Family(
    name="gpt-oss",
    format="harmony",
    stops=("<|return|>", "<|call|>"),
    engine_tool_parser="gpt-oss",
    engine_reasoning_parser="gpt-oss",
)
