"""The file form of a profile: JSON with a version, read back strictly."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, fields
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from miles_core.errors import TokenError

SCHEMA = 1
"""Version of the file form; a change of the fields that old readers would misread raises it."""


def dumped(profile: Any) -> str:
    """A dataclass of JSON values as JSON text, its version first."""
    return json.dumps({"schema": SCHEMA, **asdict(profile)}, ensure_ascii=False, indent=1)


def values_in(text: str, kind: type[Any]) -> dict[str, Any]:
    """Arguments of the dataclass `kind` that `dumped` wrote; TokenError for another version, fields or types."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refused(f"JSON that cannot be read ({error})") from error
    if not isinstance(found, dict):
        raise _refused(f"JSON of a {type(found).__name__}")
    schema = found.pop("schema", None)
    if schema != SCHEMA:
        raise _refused(f"schema {schema!r} where this version reads {SCHEMA}")
    known = {field.name: field for field in fields(kind)}
    unknown = [name for name in found if name not in known]
    if unknown:
        raise _refused(f"unknown {_named(unknown)}")
    missing = [name for name, field in known.items() if name not in found and _required(field)]
    if missing:
        raise _refused(f"no {_named(missing)}")
    return {name: _value(name, value, known[name].type) for name, value in found.items()}


def _required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _value(name: str, value: Any, annotation: Any) -> Any:
    if not _fits(value, annotation):
        raise _refused(f"{value!r:.80} as field {name}")
    return tuple(value) if get_origin(annotation) is tuple else value


def _fits(value: Any, annotation: Any) -> bool:
    """True when a JSON value has the annotated type; a tuple or list is an array, a mapping an object."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in inner)
    if annotation in (Any, NoneType, None):
        return annotation is Any or value is None
    if origin in (tuple, list):
        return isinstance(value, list) and all(_fits(item, inner[0]) for item in value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, dict) and all(_fits(item, inner[1]) for item in value.values())
    return isinstance(value, annotation) and (annotation is bool or not isinstance(value, bool))


def _named(names: list[str]) -> str:
    return f"field{'s' if len(names) > 1 else ''} {', '.join(names)}"


def _refused(found: str) -> TokenError:
    return TokenError(f"expected a profile as `Profile.to_json` writes it, found {found}; derive it again.")
