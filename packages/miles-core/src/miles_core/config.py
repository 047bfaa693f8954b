"""Configuration: strict frozen models, built from layers, with the origin of every value."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import tomli_w
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import to_json

from miles_core.config_fault import sentence
from miles_core.errors import ConfigError

DEFAULT = "default"
"""Origin of a value that no layer gave."""

_KEY = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


class Config(BaseModel):
    """A frozen pydantic model that refuses unknown keys; the docstring under a field is its description."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
        validate_default=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )


ConfigT = TypeVar("ConfigT", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved(Generic[ConfigT]):
    """A validated configuration and where each value came from.

    origins: dotted key of every leaf -> name of the layer that gave it, or "default". A list is one leaf.
    """

    config: ConfigT
    origins: Mapping[str, str]


def read_toml(path: str | Path) -> dict[str, Any]:
    """The tables of a TOML file; ConfigError when it is missing, unreadable or not TOML."""
    path = Path(path)
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: expected a TOML file, found nothing there; check the path.") from None
    except OSError as error:
        raise ConfigError(f"{path}: expected a readable TOML file, found {error.strerror or error}.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: expected UTF-8 text, found byte {error.start} that is not.") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: expected TOML, found a syntax error: {error}.") from None


def parse_override(text: str) -> dict[str, Any]:
    """`"a.b=3"` as `{"a": {"b": 3}}`: the value is parsed as TOML, and what is not TOML is a string."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not _KEY.fullmatch(key):
        raise ConfigError(f"expected an override as section.key=value, found {text!r}.")
    nested: Any = _toml_value(value.strip())
    for part in reversed(key.split(".")):
        nested = {part: nested}
    return nested


def _toml_value(text: str) -> Any:
    try:
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return table["value"] if list(table) == ["value"] else text


def build(cls: type[ConfigT], layers: Sequence[tuple[str, Mapping[str, Any]]]) -> Resolved[ConfigT]:
    """Merge the layers in order, later ones on top, and validate.

    Tables are merged key by key, everything else is replaced. Values are what TOML holds: a list serves where a tuple
    is wanted, a string where a path or an enum is, an int where a float is; nothing else is converted. ConfigError
    is one sentence with the dotted key, what was expected, what was found and the layer that gave it.
    """
    merged: dict[str, Any] = {}
    given: dict[str, str] = {}
    for name, layer in layers:
        _merge(merged, layer, name, given, "")
    try:
        # JSON, because a strict model takes TOML's few types for its own richer ones in that form only.
        config = cls.model_validate_json(to_json(merged, inf_nan_mode="constants"))
    except ValidationError as error:
        raise ConfigError(sentence(cls, merged, given, error)) from None
    origins = {key: _origin(given, key) for key, _ in _leaves(config, "")}
    return Resolved(config=config, origins=origins)


def _merge(target: dict[str, Any], layer: Mapping[str, Any], name: str, given: dict[str, str], prefix: str) -> None:
    for key, value in layer.items():
        dotted = prefix + str(key)
        if isinstance(value, Mapping):
            if not isinstance(target.get(key), dict):
                target[key] = {}
                given[dotted] = name
            _merge(target[key], value, name, given, dotted + ".")
        else:
            for stale in [k for k in given if k.startswith(dotted + ".")]:
                del given[stale]
            target[key] = value
            given[dotted] = name


def _origin(given: Mapping[str, str], key: str) -> str:
    return given.get(key, DEFAULT)


def _leaves(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Dotted key and value of everything that is not a table; an empty free table is a leaf."""
    if isinstance(value, BaseModel):
        items = [(name, getattr(value, name)) for name in type(value).model_fields]
    elif isinstance(value, Mapping) and value:
        items = [(str(key), item) for key, item in value.items()]
    else:
        yield prefix, value
        return
    for name, item in items:
        yield from _leaves(item, f"{prefix}.{name}" if prefix else name)


def dump_toml(config: BaseModel) -> str:
    """The configuration as TOML that `read_toml` and `build` turn into an equal one.

    TOML has no null: None is left out, so a field that may be None must have None as its default (else ConfigError).
    """
    for key, value, default in _optional_leaves(config, ""):
        if value is None and default is not None:
            raise ConfigError(f"{key}: expected a value that TOML can hold, found none where the default is {default}.")
    return tomli_w.dumps(_without_none(config.model_dump(mode="json")))


def _optional_leaves(config: BaseModel, prefix: str) -> Iterator[tuple[str, Any, Any]]:
    for name, info in type(config).model_fields.items():
        value = getattr(config, name)
        if isinstance(value, BaseModel):
            yield from _optional_leaves(value, f"{prefix}{name}.")
        else:
            default = (
                "required" if info.is_required() else info.get_default(call_default_factory=True, validated_data={})
            )
            yield f"{prefix}{name}", value, default


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        if None in value:
            raise ConfigError(f"expected a list that TOML can hold, found one with nothing in a place: {value}.")
        return [_without_none(item) for item in value]
    return value
