"""A section of `<invoke name="f"><parameter name="x">value</parameter></invoke>`: MiniMax M2, DeepSeek V3.2 and V4.

DeepSeek says beside each parameter whether its value is a string; MiniMax leaves that to the tool's schema.
"""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from miles_tito.parsers.calls import Call, Malformed
from miles_tito.parsers.json_body import END, expect, loads
from miles_tito.parsers.marked import CallSyntax
from miles_tito.parsers.schemas import Schemas
from miles_tito.parsers.tape import Steps, Tape

_HEAD = re.compile(r'(?P<name>[^"<>\n]+)"(?:\s+string="(?P<string>true|false)")?\s*')


def _read(tape: Tape, schemas: Schemas, *, tag: str) -> Steps[Sequence[Call]]:
    name, _ = yield from _head(tape)
    arguments: dict[str, Any] = {}
    invoke, parameter, closing = f'<{tag}invoke name="', f'<{tag}parameter name="', f"</{tag}parameter>"
    while True:
        yield from tape.space()
        if not (yield from tape.accept(parameter)):
            break
        key, is_string = yield from _head(tape)
        if key in arguments:
            raise Malformed(f"expected each parameter once, found {key!r} twice")
        # A value may hold the marks that close a call; what begins inside it says that it was never closed.
        text, mark = yield from tape.until(closing, parameter, invoke)
        if mark != closing:
            raise Malformed(f"expected {closing} for {key!r}, found {mark or END!r}")
        arguments[key] = schemas.value(name, key, text) if is_string is None else _declared(text, is_string)
    yield from expect(tape, f"</{tag}invoke>")
    return [Call(name=name, arguments=arguments)]


def _head(tape: Tape) -> Steps[tuple[str, str | None]]:
    """Name and, if it is there, the `string` attribute, up to the end of the tag."""
    text, mark = yield from tape.until(">", "<", "\n")
    found = _HEAD.fullmatch(text)
    if mark != ">" or found is None:
        raise Malformed(f"expected a quoted name and '>', found {(text + mark)[:60]!r}")
    return found["name"], found["string"]


def _declared(text: str, is_string: str) -> Any:
    return text if is_string == "true" else loads(text)


def _syntax(tag: str, section: str) -> CallSyntax:
    return CallSyntax(
        opening=f'<{tag}invoke name="',
        closing=f"</{tag}invoke>",
        read=partial(_read, tag=tag),
        section=(f"<{section}>", f"</{section}>"),
    )


MINIMAX_M2 = _syntax("", "minimax:tool_call")
DEEPSEEK_V32 = _syntax("｜DSML｜", "｜DSML｜function_calls")
DEEPSEEK_V4 = _syntax("｜DSML｜", "｜DSML｜tool_calls")
