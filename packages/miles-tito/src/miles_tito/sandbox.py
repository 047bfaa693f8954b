"""The environment that chat templates run in: jinja2's immutable sandbox, quick where templates spend their time.

Templates are programs that somebody else wrote. They may read what they are given and call harmless methods; they may
not reach Python's internals, change a list or a dictionary, or format their way around that. Nearly all of a render is
spent looking up keys of messages, fields of `loop` and `namespace` and methods of strings, each of which jinja2 checks
at length. Those lookups are answered here for exact builtin types and names that are known to be safe; everything else
takes jinja2's own path.
"""

import json
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

_DICT_ATTRIBUTES = frozenset(dir(dict))
_ABSENT = object()
_SAFE: dict[type, frozenset[str]] = {
    dict: frozenset({"get", "items", "keys", "values"}),
    str: frozenset(
        {"endswith", "find", "join", "lower", "lstrip", "replace", "rstrip", "split", "startswith", "strip", "title"}
        | {"capitalize", "count", "isdigit", "partition", "rfind", "rpartition", "rsplit", "splitlines", "upper"}
    ),
    LoopContext: frozenset(
        {"first", "index", "index0", "last", "length", "nextitem", "previtem", "revindex", "revindex0"}
    ),
}
"""Attributes of exact types that change nothing and lead nowhere."""


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Gives what `ImmutableSandboxedEnvironment` gives for every lookup, and refuses what that refuses."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        """`obj.attribute` of a template."""
        kind = type(obj)
        if kind is dict and attribute not in _DICT_ATTRIBUTES:
            value = obj.get(attribute, _ABSENT)
            return self.undefined(obj=obj, name=attribute) if value is _ABSENT else value
        if attribute in _SAFE.get(kind, ()) or (kind is Namespace and attribute[:1] != "_"):
            try:
                return getattr(obj, attribute)
            except AttributeError:
                return self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)


class _Generation(jinja2.ext.Extension):
    """`{% generation %} ... {% endgeneration %}` renders its body."""

    tags = {"generation"}  # noqa: RUF012 (the base class types it so)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Any) -> str:
        return str(caller())


def template_environment() -> TemplateSandbox:
    """A sandbox with what transformers gives to chat templates."""
    environment = TemplateSandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    return environment


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
