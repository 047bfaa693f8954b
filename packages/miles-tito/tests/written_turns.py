"""Turns with two calls as models write them, format by format, written out by hand."""

from dataclasses import dataclass

ARGUMENTS = {
    "city": 'Rome "one"\nItaly',
    "days": 3,
    "warm": True,
    "more": {"a": [1, "x"], "b": None},
    "tags": ["p", 2.5],
    "code": "42",
}
TYPES = {"city": "string", "days": "integer", "warm": "boolean", "more": "object", "tags": "array", "code": "string"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "parameters": {"type": "object", "properties": {name: {"type": kind} for name, kind in TYPES.items()}},
        },
    },
    {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}},
]
_JSON = (
    '{"city": "Rome \\"one\\"\\nItaly", "days": 3, "warm": true, "more": {"a": [1, "x"], "b": null}, '
    '"tags": ["p", 2.5], "code": "42"}'
)
_ONE = f'{{"name": "look_up", "arguments": {_JSON}}}'
_TWO = '{"name": "ping", "arguments": {}}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """first, second: the two calls. before, between, after: marks around them. ids: those the text carries.

    words: where content may stand beside the calls. inside: marks that a turn in this format is made of.
    """

    first: str
    second: str
    before: str = ""
    between: str = ""
    after: str = ""
    ids: tuple[str, str] | None = None
    words: bool = True
    inside: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return self.before + self.first + self.between + self.second + self.after


def _marked(opening: str, closing: str, one: str = _ONE, two: str = _TWO, *, between: str = "\n") -> Written:
    return Written(
        first=f"{opening}{one}{closing}",
        second=f"{opening}{two}{closing}",
        between=between,
        inside=(opening, closing, one, two),
    )


def _functions(opening: str, closing: str, pad: str) -> Written:
    values = {
        "city": 'Rome "one"\nItaly',
        "days": "3",
        "warm": "True",
        "more": '{"a": [1, "x"], "b": null}',
        "tags": '["p", 2.5]',
        "code": "42",
    }
    rows = "".join(f"<parameter={key}>{pad}{value}{pad}</parameter>\n" for key, value in values.items())
    one, two = f"\n<function=look_up>\n{rows}</function>\n", "\n<function=ping>\n</function>\n"
    written = _marked(opening, closing, one, two)
    inside = (opening, closing, "<function=", "f>", "<parameter=", "a>", "1", "</parameter>", "</function>")
    return Written(first=written.first, second=written.second, between="\n", inside=inside)


def _keys(newline: str) -> Written:
    values = {
        "city": 'Rome "one"\nItaly',
        "days": "3",
        "warm": "true",
        "more": '{"a": [1, "x"], "b": null}',
        "tags": '["p", 2.5]',
        "code": "42",
    }
    rows = "".join(
        f"<arg_key>{key}</arg_key>{newline}<arg_value>{value}</arg_value>{newline}" for key, value in values.items()
    )
    return Written(
        first=f"<tool_call>look_up{newline}{rows}</tool_call>",
        second=f"<tool_call>ping{newline}</tool_call>",
        between=newline,
        inside=("<tool_call>", "</tool_call>", "f", "<arg_key>", "a", "</arg_key>", "<arg_value>", "1", "</arg_value>"),
    )


def _invokes(tag: str, section: str, *, declared: bool) -> Written:
    values = [
        ("city", 'Rome "one"\nItaly', True),
        ("days", "3", False),
        ("warm", "true", False),
        ("more", '{"a": [1, "x"], "b": null}', False),
        ("tags", '["p", 2.5]', False),
        ("code", "42", True),
    ]
    rows = "".join(
        f'<{tag}parameter name="{key}"{f" string={chr(34)}{str(text).lower()}{chr(34)}" if declared else ""}>'
        f"{value}</{tag}parameter>\n"
        for key, value, text in values
    )
    return Written(
        before=f"<{section}>\n",
        first=f'<{tag}invoke name="look_up">\n{rows}</{tag}invoke>',
        between="\n",
        second=f'<{tag}invoke name="ping">\n\n</{tag}invoke>',
        after=f"\n</{section}>",
        inside=(
            f"<{section}>",
            f"</{section}>",
            f'<{tag}invoke name="f">',
            f'<{tag}parameter name="a">',
            "1",
            f"</{tag}parameter>",
            f"</{tag}invoke>",
        ),
    )


def _deepseek(one: str, two: str, between: str) -> Written:
    opening, closing = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
    start, end = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
    return Written(
        before=start,
        first=opening + one + closing,
        between=between,
        second=opening + two + closing,
        after=end,
        inside=(start, end, opening, closing, one, two, "<｜tool▁sep｜>", "function"),
    )


_PYTHON = (
    "look_up(city='Rome \"one\"\\nItaly', days=3, warm=True, more={'a': [1, 'x'], 'b': None}, "
    'tags=["p", 2.5], code="42")'
)
_GEMMA = (
    'call:look_up{city:<|"|>Rome "one"\nItaly<|"|>,code:<|"|>42<|"|>,days:3,more:{a:[1,<|"|>x<|"|>],b:None},'
    'tags:[<|"|>p<|"|>,2.5],warm:true}'
)
_ESCAPED = (
    'call:look_up{city:<escape>Rome "one"\nItaly<escape>,days:<escape>3<escape>,warm:<escape>True<escape>,'
    "more:<escape>{'a': [1, 'x'], 'b': None}<escape>,tags:<escape>['p', 2.5]<escape>,code:<escape>42<escape>}"
)
_IDS = ("abcdefgh1", "abcdefgh2")

WRITTEN: dict[str, Written] = {
    "hermes": _marked("<tool_call>", "</tool_call>", f"\n{_ONE}\n", f"\n{_TWO}\n"),
    "qwen3_coder": _functions("<tool_call>", "</tool_call>", "\n"),
    "seed_oss": _functions("<seed:tool_call>", "</seed:tool_call>", ""),
    "glm45": _keys("\n"),
    "glm47": _keys(""),
    "kimi_k2": Written(
        before="<|tool_calls_section_begin|>",
        first=f"<|tool_call_begin|>functions.look_up:0<|tool_call_argument_begin|>{_JSON}<|tool_call_end|>",
        second="<|tool_call_begin|>functions.ping:1<|tool_call_argument_begin|>{}<|tool_call_end|>",
        after="<|tool_calls_section_end|>",
        ids=("functions.look_up:0", "functions.ping:1"),
        inside=(
            "<|tool_calls_section_begin|>",
            "<|tool_calls_section_end|>",
            "<|tool_call_begin|>",
            "functions.f:0",
            "<|tool_call_argument_begin|>",
            "{}",
            "<|tool_call_end|>",
        ),
    ),
    "minimax_m2": _invokes("", "minimax:tool_call", declared=False),
    "deepseek_v32": _invokes("｜DSML｜", "｜DSML｜function_calls", declared=True),
    "deepseek_v4": _invokes("｜DSML｜", "｜DSML｜tool_calls", declared=True),
    "deepseek_v31": _deepseek(f"look_up<｜tool▁sep｜>{_JSON}", "ping<｜tool▁sep｜>{}", ""),
    "deepseek_v3": _deepseek(
        f"function<｜tool▁sep｜>look_up\n```json\n{_JSON}\n```", "function<｜tool▁sep｜>ping\n```json\n{}\n```", "\n"
    ),
    "harmony": Written(
        first=f"<|channel|>commentary to=functions.look_up <|constrain|>json<|message|>{_JSON}<|call|>",
        between="<|start|>assistant",
        second=" to=functions.ping<|channel|>commentary json<|message|>{}<|call|>",
        words=False,
        inside=(
            "<|channel|>analysis",
            "<|channel|>final",
            " to=functions.f",
            "<|message|>",
            "{}",
            "<|end|>",
            "<|call|>",
            "<|start|>assistant",
        ),
    ),
    "mistral": Written(
        first=f"[TOOL_CALLS]look_up[CALL_ID]abcdefgh1[ARGS]{_JSON}",
        second="[TOOL_CALLS]ping[CALL_ID]abcdefgh2[ARGS]{}",
        ids=_IDS,
        inside=("[TOOL_CALLS]", "f", "[ARGS]", "{}", "[CALL_ID]", f"[{_TWO}]"),
    ),
    "gemma4": _marked("<|tool_call>", "<tool_call|>", _GEMMA, "call:ping{}", between=""),
    "functiongemma": _marked("<start_function_call>", "<end_function_call>", _ESCAPED, "call:ping{}", between=""),
    "apertus": Written(
        first=f'<|tools_prefix|>[{{"look_up": {_JSON}}}, ',
        second='{"ping": {}}]<|tools_suffix|>',
        inside=("<|tools_prefix|>", "<|tools_suffix|>", '[{"f": {}}]'),
    ),
    "cohere": Written(
        first=f'<|START_ACTION|>[\n    {{"tool_call_id": "0", "tool_name": "look_up", "parameters": {_JSON}}},\n',
        second='    {"tool_call_id": "1", "tool_name": "ping", "parameters": {}}\n]<|END_ACTION|>',
        ids=("0", "1"),
        inside=("<|START_ACTION|>", "<|END_ACTION|>", '[{"tool_name": "f", "parameters": {}}]'),
    ),
    "command_r": Written(
        first=f'Action:\n```json\n[\n    {{"tool_name": "look_up", "parameters": {_JSON}}},\n',
        second='    {"tool_name": "ping", "parameters": {}}\n]```',
        inside=("Action:\n```json\n", "```", '[{"tool_name": "f", "parameters": {}}]'),
    ),
    "hunyuan": Written(
        first=f"<tool_calls>[{_ONE}, ",
        second=f"{_TWO}]</tool_calls>",
        inside=("<tool_calls>", "</tool_calls>", f"[{_TWO}]"),
    ),
    "internlm2": _marked("<|action_start|><|plugin|>", "<|action_end|>", f"\n{_ONE}", f"\n{_TWO}", between=""),
    "longcat": _marked("<longcat_tool_call>", "</longcat_tool_call>", f"\n{_ONE}\n", f"\n{_TWO}\n"),
    "granite": Written(first=f"<|tool_call|>[{_ONE}, ", second=f"{_TWO}]", inside=("<|tool_call|>", f"[{_TWO}]")),
    "granite_20b": _marked("<function_call> ", "", between="\n"),
    "phi4_mini": Written(
        first=f"<|tool_call|>[{_ONE}, ",
        second=f"{_TWO}]<|/tool_call|>",
        inside=("<|tool_call|>", "<|/tool_call|>", f"[{_TWO}]"),
    ),
    "nemotron_nano_v2": Written(
        first=f"<TOOLCALL>[{_ONE}, ",
        second=f"{_TWO}]</TOOLCALL>",
        inside=("<TOOLCALL>", "</TOOLCALL>", f"[{_TWO}]"),
    ),
    "gigachat": _marked("<|message_sep|>\n\nfunction call<|role_sep|>\n", "", between=""),
    "lfm2": Written(
        first=f"<|tool_call_start|>[{_PYTHON}, ",
        second="ping()]<|tool_call_end|>",
        inside=("<|tool_call_start|>", "<|tool_call_end|>", "[f(a=1)]"),
    ),
    "llama3_json": Written(
        first=_ONE.replace("arguments", "parameters"),
        between="; ",
        second=_TWO.replace("arguments", "parameters"),
        words=False,
        inside=("<|python_tag|>", _TWO, ";", "{", '{"name"', "[1]"),
    ),
    "pythonic": Written(
        first=f"[{_PYTHON}, ", second="ping()]", words=False, inside=("[", "f(", "a=1", ")", "]", "[f(a=1)]", ",")
    ),
}
"""By the name of the format."""
