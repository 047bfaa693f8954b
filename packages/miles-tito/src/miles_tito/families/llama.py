"""Llama 3.1 to 3.3: a call is JSON with `parameters`, and ends with `<|eom_id|>` where the code interpreter is on."""

from miles_tito.families.family import Family

LLAMA_3 = Family(
    name="llama-3",
    format="llama3_json",
    stops=("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
    engine_tool_parser="llama3",
)
