"""Types of tool parameters, for formats that write every value as bare text."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from miles_core.errors import TokenError
from miles_tito.parsers.calls import Malformed
from miles_tito.parsers.literals import python_value

_INTEGER = re.compile(r"[+-]?\d{1,300}")
_WORDS = {"true": True, "True": True, "false": False, "False": False}
_NULLS = ("null", "None")
_ALIASES = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "dict": "object",
    "list": "array",
    "tuple": "array",
    "None": "null",
}
"""Names of Python's types, which many a schema uses."""
_NAMES: tuple[tuple[type, str], ...] = (
    (bool, "boolean"),
    (str, "string"),
    (int, "integer"),
    (float, "number"),
    (dict, "object"),
    (list, "array"),
    (type(None), "null"),
)
_KNOWN = {name for _, name in _NAMES}


class Schemas:
    """The parameters of the tools given, by function and name."""

    def __init__(self, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        self._parameters: dict[str, Mapping[str, Any]] = {}
        for tool in tools:
            if not isinstance(tool, Mapping):
                raise TokenError(f"expected the schema of a tool as an object, found {type(tool).__name__}.")
            function = tool.get("function", tool)
            if isinstance(function, Mapping) and isinstance(function.get("parameters"), Mapping):
                self._parameters[str(function.get("name"))] = function["parameters"]

    def types(self, function: str, parameter: str) -> frozenset[str]:
        """JSON schema types that the parameter may have; empty when nothing says."""
        root = self._parameters.get(function, {})
        properties = root.get("properties")
        if not isinstance(properties, Mapping) or parameter not in properties:
            return frozenset()
        return frozenset(_types(properties[parameter], root, depth=0))

    def value(self, function: str, parameter: str, text: str) -> Any:
        """The value that the text spells for this parameter; see `typed`."""
        return typed(text, self.types(function, parameter))


def typed(text: str, types: Iterable[str]) -> Any:
    """The value of a bare text, given the types its schema allows.

    A schema that allows strings keeps the text as it stands (and reads `null` where it also allows null). Other types
    are read as JSON, `True`, `False` and `None` as Python writes them too, objects and arrays also as Python literals.
    Text that is none of the allowed types stays a string: whoever checks the arguments can say so. Without types the
    text is read as JSON where that is no string and is written back as the very same text; otherwise it is a string.
    """
    allowed = set(types)
    bare = text.strip()
    if not allowed:
        return _untyped(text)
    if "null" in allowed and bare in _NULLS:
        return None
    if "string" in allowed:
        return text
    if "boolean" in allowed and bare in _WORDS:
        return _WORDS[bare]
    if allowed & {"integer", "number"} and _INTEGER.fullmatch(bare):
        return int(bare)
    value = _literal(bare)
    fits = (
        (isinstance(value, float) and "number" in allowed)
        or (isinstance(value, float) and value.is_integer())
        or (isinstance(value, dict) and "object" in allowed)
        or (isinstance(value, list) and "array" in allowed)
    )
    return value if fits else text


def _untyped(text: str) -> Any:
    try:
        value = json.loads(text)
        same = not isinstance(value, str) and json.dumps(value, ensure_ascii=False) == text
    except (ValueError, RecursionError):
        return text
    return value if same else text


def _literal(text: str) -> Any:
    """Value of a JSON text, or of a Python literal that JSON can express; None for anything else."""
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        pass
    try:
        return python_value(text)
    except Malformed:
        return None


def _types(schema: Any, root: Mapping[str, Any], *, depth: int) -> set[str]:
    """Types a schema allows; references inside the same schema are followed, to a depth no real schema has."""
    if not isinstance(schema, Mapping) or depth > 8:
        return set()
    named = schema.get("type")
    if isinstance(named, str | list):
        names = {named} if isinstance(named, str) else {str(name) for name in named}
        return {_ALIASES.get(name, name) for name in names} & _KNOWN
    values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema["const"]] if "const" in schema else []
    found = {name for value in values for name in [_name_of(value)] if name}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        found |= _types(_resolved(reference, root), root, depth=depth + 1)
    for key in ("anyOf", "oneOf", "allOf"):
        for branch in schema[key] if isinstance(schema.get(key), list) else ():
            found |= _types(branch, root, depth=depth + 1)
    return found


def _resolved(reference: str, root: Mapping[str, Any]) -> Any:
    place: Any = root
    for part in reference[2:].split("/"):
        place = place.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(place, Mapping) else None
    return place


def _name_of(value: Any) -> str | None:
    return next((name for kind, name in _NAMES if isinstance(value, kind)), None)
