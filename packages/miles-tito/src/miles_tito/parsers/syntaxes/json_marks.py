"""Calls that are JSON with `name` and `arguments` between two marks, one object or an array of them."""

from collections.abc import Sequence

from miles_tito.parsers.calls import Call
from miles_tito.parsers.json_body import calls_of, expect, json_value
from miles_tito.parsers.marked import CallSyntax, Reader
from miles_tito.parsers.schemas import Schemas
from miles_tito.parsers.tape import Steps, Tape


def json_reader(
    closing: str,
    *,
    names: Sequence[str] = ("name",),
    arguments: Sequence[str] = ("arguments", "parameters"),
    ids: Sequence[str] = (),
) -> Reader:
    """A reader of JSON up to the closing mark ("" for none); see `json_body.call_of` for the keys."""

    def read(tape: Tape, schemas: Schemas) -> Steps[Sequence[Call]]:
        value = yield from json_value(tape)
        if closing:
            yield from expect(tape, closing)
        return calls_of(value, names=names, arguments=arguments, ids=ids)

    return read


def between(opening: str, closing: str = "") -> CallSyntax:
    """JSON between two marks; without a closing one a call ends with its JSON."""
    return CallSyntax(opening=opening, closing=closing, read=json_reader(closing))


HERMES = between("<tool_call>", "</tool_call>")
"""Hermes, Qwen2.5, Qwen3 and many more."""
HUNYUAN = between("<tool_calls>", "</tool_calls>")
INTERNLM2 = between("<|action_start|><|plugin|>", "<|action_end|>")
GRANITE = between("<|tool_call|>")
GRANITE_20B = between("<function_call>")
PHI4_MINI = between("<|tool_call|>", "<|/tool_call|>")
LONGCAT = between("<longcat_tool_call>", "</longcat_tool_call>")
NEMOTRON_NANO_V2 = between("<TOOLCALL>", "</TOOLCALL>")
GIGACHAT = between("<|message_sep|>\n\nfunction call<|role_sep|>\n")
