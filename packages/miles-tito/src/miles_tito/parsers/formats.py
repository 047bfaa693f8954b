"""The marks that a model writes around its reasoning and its tool calls."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFormat:
    """How a turn is written. Empty strings switch a part off.

    reasoning: opening and closing mark of the reasoning. call: opening and closing mark of one tool call, whose body is
    a JSON object with `name` and `arguments`.
    """

    name: str
    reasoning: tuple[str, str] = ("", "")
    call: tuple[str, str] = ("", "")


PLAIN = TurnFormat(name="plain")
HERMES = TurnFormat(name="hermes", reasoning=("<think>", "</think>"), call=("<tool_call>", "</tool_call>"))
HERMES_WITHOUT_REASONING = TurnFormat(name="hermes-plain", call=("<tool_call>", "</tool_call>"))
REASONING = TurnFormat(name="think", reasoning=("<think>", "</think>"))


def detect(template: str) -> TurnFormat:
    """The format that a chat template's own text shows."""
    reasons = "</think>" in template
    calls = "<tool_call>" in template
    if reasons and calls:
        return HERMES
    if calls:
        return HERMES_WITHOUT_REASONING
    return REASONING if reasons else PLAIN
