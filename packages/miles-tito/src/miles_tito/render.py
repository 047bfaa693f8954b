"""Messages to text: the chat template, run in a sandbox as transformers runs it."""

import copy
import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

import jinja2
import jinja2.nodes
from jinja2 import meta

from miles_core.messages import text_of
from miles_tito.conditions import names_asked
from miles_tito.errors import TemplateError
from miles_tito.sandbox import template_environment

INVALID_CALL = "invalid"
"""Key that marks a tool call which could not be read; its text lies under "raw"."""


MAX_DEPTH = 100
"""Levels of nesting of a message, a schema or a call's arguments; what is nested deeper stays the text it is."""

REASONING = ("reasoning_content", "reasoning", "thinking")
"""Keys under which a message may carry its reasoning."""


def reasoning_of(message: Mapping[str, Any]) -> Any:
    """The reasoning under whichever key it is, or None."""
    return next((message[key] for key in REASONING if message.get(key)), None)


class ChatTemplate:
    """A compiled chat template with the arguments that every render of it uses.

    kwargs: template arguments (for example `enable_thinking`). special_tokens: `bos_token` and the like.
    arguments: how tool-call arguments reach the template, as an "object" or as a "string" of JSON.
    schemas: how tool schemas do, "wrapped" as callers give them or "bare", the function's part alone.
    beside_calls: what stands for the content of a turn that only calls tools: "empty" text, "null", or "absent".
    """

    def __init__(
        self,
        source: str,
        *,
        kwargs: Mapping[str, Any] | None = None,
        special_tokens: Mapping[str, str] | None = None,
        arguments: str = "object",
        schemas: str = "wrapped",
        beside_calls: str = "empty",
    ) -> None:
        self.source = source
        self.kwargs = dict(kwargs or {})
        self.special_tokens = dict(special_tokens or {})
        self.arguments = arguments
        self.schemas = schemas
        self.beside_calls = beside_calls
        taken = sorted(_RENDERS & set(self.kwargs))
        if taken:
            raise TemplateError(
                f"expected template arguments of the template's own, found {', '.join(taken)}, which every render sets."
            )
        try:
            self._compiled = template_environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(
                f"expected a chat template in Jinja, found {error.message} in line {error.lineno}."
            ) from error
        except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
            # Jinja writes Python: what Python cannot compile (a break outside a loop, too deep nesting) is no template.
            raise TemplateError(
                f"expected a chat template that compiles, found {type(error).__name__}: {str(error)[:200]}."
            ) from error

    @cached_property
    def reads(self) -> frozenset[str]:
        """Names that the source reads without defining them."""
        return frozenset(meta.find_undeclared_variables(template_environment().parse(self.source)))

    @cached_property
    def asks(self) -> frozenset[str]:
        """Those of `reads` that the source uses as conditions and as nothing else."""
        return self.reads & names_asked(template_environment().parse(self.source))

    @cached_property
    def constants(self) -> tuple[str, ...]:
        """Every text constant of the source's expressions."""
        found = {node.value for node in template_environment().parse(self.source).find_all(jinja2.nodes.Const)}
        return tuple(sorted(text for text in found if isinstance(text, str) and text))

    @cached_property
    def numbers(self) -> frozenset[int]:
        """Every whole number that the source or an argument of the template holds."""
        found = {node.value for node in template_environment().parse(self.source).find_all(jinja2.nodes.Const)}
        held = [*found, *(value for value in self.kwargs.values() if isinstance(value, int))]
        return frozenset(number for number in held if isinstance(number, int) and not isinstance(number, bool))

    @cached_property
    def phrases(self) -> tuple[str, ...]:
        """Texts that the source compares with, looks for or hands to a method, filter or test."""
        asking = (jinja2.nodes.Compare, jinja2.nodes.Call, jinja2.nodes.Filter, jinja2.nodes.Test)
        asked = template_environment().parse(self.source).find_all(asking)
        found = {node.value for part in asked for node in part.find_all(jinja2.nodes.Const)}
        return tuple(sorted(text for text in found if isinstance(text, str) and text.strip()))

    def with_arguments(self, form: str) -> "ChatTemplate":
        """The same compiled template with tool-call arguments in another form."""
        other = copy.copy(self)
        other.arguments = form
        return other

    def with_schemas(self, form: str) -> "ChatTemplate":
        """The same compiled template with tool schemas in another form."""
        other = copy.copy(self)
        other.schemas = form
        return other

    def with_beside_calls(self, form: str) -> "ChatTemplate":
        """The same compiled template with another form of the content of turns that only call tools."""
        other = copy.copy(self)
        other.beside_calls = form
        return other

    def with_kwargs(self, kwargs: Mapping[str, Any]) -> "ChatTemplate":
        """The same compiled template with more arguments."""
        other = copy.copy(self)
        other.kwargs = {**self.kwargs, **kwargs}
        return other

    def with_special_tokens(self, tokens: Mapping[str, str]) -> "ChatTemplate":
        """The same compiled template with other names for `bos_token` and the like."""
        other = copy.copy(self)
        other.special_tokens = dict(tokens)
        return other

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        generation_prompt: bool,
        now: datetime,
    ) -> str:
        """The text of messages that `normalised` has prepared; TemplateError when the template raises."""
        names: dict[str, Any] = {**self.special_tokens, **self.kwargs}
        names["strftime_now"] = now.strftime
        if self.schemas == "bare":
            tools = [tool.get("function", tool) for tool in tools or ()]
        try:
            text = self._compiled.render(
                messages=list(messages),
                tools=list(tools) if tools else None,
                documents=None,
                add_generation_prompt=generation_prompt,
                **names,
            )
            text.encode()  # half a character, which a template can spell, has no tokens
        except jinja2.TemplateError as error:
            raise TemplateError(f"the chat template refuses this conversation: {error.message or error}") from error
        except _FAILURES as error:
            # A template is a program over arbitrary messages: what Python raises inside it is the template's failure.
            raise TemplateError(
                f"the chat template fails on this conversation: {type(error).__name__}: {error}"
            ) from error
        return text

    def normalised(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Copies of the messages in the one form templates agree on; the caller's objects stay as they are.

        Null and missing content becomes "" (beside tool calls whatever the template takes), text parts are joined,
        JSON-string arguments become objects (or the other way round), nulls and empty lists of calls are dropped, a
        tool result learns which function it answers.
        """
        names: dict[str, str] = {}
        return [self._normalised(message, names) for message in messages]

    def _normalised(self, message: Mapping[str, Any], names: dict[str, str]) -> dict[str, Any]:
        plain = {key: value for key, value in message.items() if value is not None and key != "tool_calls"}
        plain["content"] = text_of(message.get("content"))
        if message["role"] == "assistant":
            self._normalise_assistant(message, plain, names)
        elif message["role"] == "tool" and "name" not in plain and message.get("tool_call_id") in names:
            plain["name"] = names[message["tool_call_id"]]
        return plain

    def _normalise_assistant(self, message: Mapping[str, Any], plain: dict[str, Any], names: dict[str, str]) -> None:
        reasoning = reasoning_of(plain)
        for key in REASONING:
            plain.pop(key, None)
        if reasoning is not None:
            plain |= {"reasoning_content": reasoning, "thinking": reasoning}
        calls = []
        for call in message.get("tool_calls") or ():
            if call.get(INVALID_CALL):
                plain["content"] += call.get("raw", "")
                continue
            calls.append({**call, "function": self._function(call["function"])})
            if call.get("id"):
                names[call["id"]] = call["function"]["name"]
        if calls:
            plain["tool_calls"] = calls
            if not plain["content"] and self.beside_calls == "null":
                plain["content"] = None
            elif not plain["content"] and self.beside_calls == "absent":
                del plain["content"]

    def _function(self, function: Mapping[str, Any]) -> dict[str, Any]:
        arguments = function.get("arguments")
        if self.arguments == "string" and not isinstance(arguments, str):
            arguments = json.dumps(arguments if arguments is not None else {}, ensure_ascii=False)
        elif self.arguments == "object" and (isinstance(arguments, str) or arguments is None):
            arguments = _object(arguments or "{}")
        return {**function, "arguments": arguments}


_RENDERS = {"messages", "tools", "documents", "add_generation_prompt", "strftime_now", "raise_exception"}
_FAILURES = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError, MemoryError)


def literals_of(source: str) -> str:
    """Every literal text of a template, joined by newlines: where its control tokens can be looked for."""
    parsed = template_environment().parse(source)
    found = [node.data for node in parsed.find_all(jinja2.nodes.TemplateData)]
    found += [node.value for node in parsed.find_all(jinja2.nodes.Const) if isinstance(node.value, str)]
    return "\n".join(found)


def mentions(source: str, name: str) -> bool:
    """True when the template mentions the name as a word."""
    return re.search(rf"\b{re.escape(name)}\b", source) is not None


def _object(arguments: str) -> Any:
    """The object that the JSON text spells, or the text itself where it spells none or one nested too deeply."""
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    brackets = arguments.count("[") + arguments.count("{")
    if brackets > MAX_DEPTH and _is_deeper(found, MAX_DEPTH):
        return arguments
    return _encodable(found) if _HALF.search(arguments) else found


_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def _encodable(value: Any) -> Any:
    """The JSON value with U+FFFD for each half of a character that an escape spelled: such a text has no tokens."""
    if isinstance(value, str):
        return "".join("\ufffd" if "\ud800" <= letter <= "\udfff" else letter for letter in value)
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list) else value


def _is_deeper(value: Any, levels: int) -> bool:
    level = [value]
    for _ in range(levels):
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
    return bool(level)
