"""Mistral models with `[TOOL_CALLS]`."""

from miles_tito.families.family import Family

MISTRAL = Family(name="mistral", format="mistral", stops=("</s>",), engine_tool_parser="mistral")
