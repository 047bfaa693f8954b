"""What is wrong with a configuration, as one sentence: key, expected, found, origin, and what to do."""

import difflib
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

_EXPECTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a string",
    "path_type": "a path as a string",
    "list_type": "a list",
    "tuple_type": "a list",
    "set_type": "a list",
    "frozen_set_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "none_required": "no value",
}

_BOUNDED = {
    "greater_than": ("a number above {gt}", "gt"),
    "greater_than_equal": ("a number of at least {ge}", "ge"),
    "less_than": ("a number below {lt}", "lt"),
    "less_than_equal": ("a number of at most {le}", "le"),
    "multiple_of": ("a multiple of {multiple_of}", "multiple_of"),
    "literal_error": ("{expected}", "expected"),
    "enum": ("{expected}", "expected"),
    "string_too_short": ("a string of at least {min_length} characters", "min_length"),
    "string_too_long": ("a string of at most {max_length} characters", "max_length"),
    "string_pattern_mismatch": ("a string that matches {pattern}", "pattern"),
    "too_short": ("at least {min_length} entries", "min_length"),
    "too_long": ("at most {max_length} entries", "max_length"),
}


def sentence(cls: type[BaseModel], merged: Mapping[str, Any], given: Mapping[str, str], error: ValidationError) -> str:
    """The first fault of a validation as one sentence; unknown keys come first, for they explain missing ones."""
    faults = sorted(error.errors(include_url=False), key=lambda fault: fault["type"] != "extra_forbidden")
    more = len(faults) - 1
    tail = f" ({more} more {'fault' if more == 1 else 'faults'} after this one.)" if more else ""
    return _describe(cls, merged, given, faults[0]) + tail


def _describe(cls: type[BaseModel], merged: Mapping[str, Any], given: Mapping[str, str], fault: ErrorDetails) -> str:
    path, parent = _locate(cls, fault["loc"])
    key = _dotted(path)
    origin = _origin(given, path)
    where = f"{key}{f' (from {origin})' if origin else ''}" if key else "the configuration"
    kind, context = fault["type"], fault.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(path, parent, merged, given, origin)
    if kind == "missing":
        return f"{key}: expected a value, found none; set it."
    if kind == "value_error":
        return f"{where}: {_full_stop(str(context.get('error', fault['msg'])))}"
    if kind == "union_tag_not_found":
        return f"{where}: expected a type among {_tags(parent)}, found none; set {key}.type."
    if kind == "union_tag_invalid":
        found = str(context.get("tag"))
        tags = _tag_names(parent)
        origin = _origin(given, [*path, "type"])
        return (
            f"{key}.type (from {origin}): expected one of {_tags(parent)}, found {found!r}{nearest(found, tags) or '.'}"
        )
    return f"{where}: expected {_expected(kind, context, fault['msg'])}, found {_found(fault['input'])}."


def _unknown_key(
    path: Sequence[str | int], parent: Any, merged: Mapping[str, Any], given: Mapping[str, str], origin: str
) -> str:
    name, table = str(path[-1]), path[:-1]
    fields = list(parent.model_fields) if _is_model(parent) else []
    chosen = _value_at(merged, [*table, "type"])
    type_origin = _origin(given, [*table, "type"])
    start = f"{_dotted(path)} (from {origin}): "
    if isinstance(chosen, str) and type_origin != origin and not difflib.get_close_matches(name, fields):
        return (
            f"{start}{_dotted(table)}.type is {chosen!r} (from {type_origin}), which has no key {name!r}; "
            f"remove the key there, or write a recipe with a [{_dotted(table)}] of this type; "
            f"valid are {', '.join(sorted(fields))}."
        )
    hint = nearest(name, fields) or f"; valid are {', '.join(sorted(fields))}."
    return f"{start}unknown key {name!r}{hint}"


def nearest(name: str, names: Sequence[str]) -> str:
    """The end of a sentence: `"; did you mean 'shuffle'?"`, or nothing when no name is near."""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def _locate(cls: type[BaseModel], loc: Sequence[str | int]) -> tuple[list[str | int], Any]:
    """The key path in the input of a pydantic location, and the type that holds (or should hold) its last part.

    A location also names the members of unions, which are no keys; the walk follows the annotations to tell them apart.
    """
    path: list[str | int] = []
    holder: Any = cls
    here: Any = cls
    for part in loc:
        members = _members(here)
        if len(members) > 1:
            here = _member(members, str(part))
            continue
        here = members[0] if members else here
        holder = here
        path.append(part)
        here = _inside(here, part)
    members = _members(here)
    return path, (here if len(members) > 1 else holder)


def _members(annotation: Any) -> list[Any]:
    """The choices of a union without None; a plain type is its own only choice."""
    if get_origin(annotation) is typing.Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (typing.Union, types.UnionType):
        return [m for arg in get_args(annotation) if arg is not type(None) for m in _members(arg)]
    return [annotation]


def _member(members: Sequence[Any], tag: str) -> Any:
    for member in members:
        if tag in _model_tags(member) or getattr(member, "__name__", None) == tag:
            return member
    return Any


def _inside(annotation: Any, part: str | int) -> Any:
    if _is_model(annotation):
        field = annotation.model_fields.get(part)
        return field.annotation if field else Any
    arguments = [a for a in get_args(annotation) if a is not Ellipsis]
    if not arguments:
        return Any
    if isinstance(part, int) and len(arguments) > 1 and part < len(arguments):
        return arguments[part]
    return arguments[-1]


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _model_tags(member: Any) -> list[str]:
    field = member.model_fields.get("type") if _is_model(member) else None
    return [str(tag) for tag in get_args(field.annotation)] if field else []


def _tag_names(union: Any) -> list[str]:
    return [tag for member in _members(union) for tag in _model_tags(member)]


def _tags(union: Any) -> str:
    return ", ".join(repr(tag) for tag in _tag_names(union))


def _dotted(path: Sequence[str | int]) -> str:
    return ".".join(str(part) for part in path)


def _origin(given: Mapping[str, str], path: Sequence[str | int]) -> str:
    """The layer of the key, or of the nearest table around it that a layer gave."""
    for length in range(len(path), 0, -1):
        origin = given.get(_dotted(path[:length]))
        if origin:
            return origin
    return ""


def _value_at(merged: Any, path: Sequence[str | int]) -> Any:
    for part in path:
        try:
            merged = merged[part]
        except (KeyError, IndexError, TypeError):
            return None
    return merged


def _expected(kind: str, context: Mapping[str, Any], message: str) -> str:
    if kind in _EXPECTED:
        return _EXPECTED[kind]
    if kind in _BOUNDED and _BOUNDED[kind][1] in context:
        return _BOUNDED[kind][0].format(**context)
    return message.removeprefix("Input should be ").rstrip(".")


def _found(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"the string {value!r}"
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        return f"the list {list(value)!r}" if len(value) <= 8 else f"a list of {len(value)} entries"
    return "nothing" if value is None else repr(value)


def _full_stop(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else text + "."
