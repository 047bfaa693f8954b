"""Reading a request's JSON: every field is known, of its type, and named in the error where it is not."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import xxhash

from miles_core.errors import SessionError

MAX_DEPTH = 100
"""Levels of nesting in a body; templates and JSON writers recurse, and no conversation comes near it."""


class FieldError(SessionError):
    """A field that cannot be used. param: its name. code: the dialect's name for the failure, if it has one."""

    def __init__(self, param: str, message: str, *, code: str | None = None) -> None:
        super().__init__(f"{param}: {message}", status=400)
        self.param = param
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The fields of one kind of object.

    handled: read elsewhere. without_effect: accepted whatever they hold, since they change no token here. only: the
    values that change nothing; another one would alter what is sampled in a way that is not built or that training
    would not see.
    """

    handled: frozenset[str]
    without_effect: frozenset[str] = frozenset()
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def check(self, fields: Mapping[str, Any], where: str = "") -> None:
        """FieldError for a field that is not known or holds a value that is not supported."""
        for name, value in fields.items():
            if name in self.handled or name in self.without_effect:
                continue
            if name not in self.only:
                raise FieldError(where + name, "this field is not known here; remove it.")
            if not any(_same(value, allowed) for allowed in self.only[name]):
                values = [orjson.dumps(v).decode() for v in self.only[name] if v is not None]
                raise FieldError(
                    where + name,
                    f"only {' or '.join(values) or 'null'} is supported in a session, found {brief(value)}.",
                )


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a body; SessionError 400 for anything else, or for one nested too deeply."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise SessionError(f"expected a JSON object, found a body that does not parse: {error}.", status=400) from None
    if not isinstance(value, dict):
        raise SessionError(f"expected a JSON object, found {type(value).__name__}.", status=400)
    _check_depth(value)
    return value


def fingerprint(dialect: str, fields: Mapping[str, Any]) -> str:
    """The same for two requests of equal meaning, whatever the order of their fields."""
    return xxhash.xxh3_128_hexdigest(dialect.encode() + orjson.dumps(fields, option=orjson.OPT_SORT_KEYS))


def number(fields: Mapping[str, Any], name: str, *, least: float, most: float) -> float | None:
    """A number within the bounds, None when absent."""
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise FieldError(name, f"expected a number from {least:g} to {most:g}, found {brief(value)}.")
    return float(value)


def integer(fields: Mapping[str, Any], name: str, *, least: int, most: int = 2**63 - 1) -> int | None:
    """An integer within the bounds, None when absent."""
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        bound = f"of at least {least}" if value is None or most == 2**63 - 1 else f"from {least} to {most}"
        raise FieldError(name, f"expected an integer {bound}, found {brief(value)}.")
    return value


def top_k(fields: Mapping[str, Any]) -> int | None:
    """The number of candidates kept, -1 for all of them."""
    value = integer(fields, "top_k", least=-1)
    if value == 0:
        raise FieldError("top_k", "expected at least 1, or -1 for no limit, found 0.")
    return value


def flag(fields: Mapping[str, Any], name: str) -> bool:
    """A boolean, False when absent."""
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise FieldError(name, f"expected true or false, found {brief(value)}.")
    return bool(value)


def text(fields: Mapping[str, Any], name: str, where: str = "") -> str:
    """A string that must be there."""
    value = fields.get(name)
    if not isinstance(value, str):
        raise FieldError(where + name, f"expected a string, found {brief(value)}.")
    return value


def obj(value: Any, where: str) -> Mapping[str, Any]:
    """An object that must be one."""
    if not isinstance(value, Mapping):
        raise FieldError(where, f"expected an object, found {brief(value)}.")
    return value


def brief(value: Any) -> str:
    """A value as an error shows it: JSON, cut short."""
    shown = orjson.dumps(value).decode()
    return shown if len(shown) <= 200 else f"{shown[:200]}..."


def _same(value: object, allowed: object) -> bool:
    # True equals 1 in Python, not in JSON.
    return value == allowed and isinstance(value, bool) == isinstance(allowed, bool)


def _check_depth(value: Any) -> None:
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise SessionError(f"expected at most {MAX_DEPTH} levels of nesting in the body, found more.", status=400)
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, dict | list)
        ]
