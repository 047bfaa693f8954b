"""Tables of interchangeable functions: a short name or `module:attribute` becomes a callable with a known signature."""

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from miles_core.errors import PluginError
from miles_core.plugins import attribute_at


def choose(
    kind: str, name: str, *, table: Mapping[str, str], parameters: tuple[str, ...], keywords: tuple[str, ...] = ()
) -> Callable[..., Any]:
    """The callable that `name` stands for.

    `name` is a key of `table` or `module:attribute`. The callable must accept `parameters` by position, in this
    order, and `keywords` by name.
    Raises PluginError with what was expected and what was found.
    """
    target = table.get(name, name)
    if ":" not in target:
        near = get_close_matches(name, table, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"choose one of {', '.join(table)}."
        raise PluginError(f"{kind}: expected a known name or module:attribute, found {name!r}; {hint}")
    try:
        function = attribute_at(target)
    except PluginError as error:
        raise PluginError(f"{kind} {name!r}: cannot be imported ({error})") from error
    _check_signature(kind, name, function, parameters, keywords)
    return function


def _check_signature(
    kind: str, name: str, function: object, parameters: tuple[str, ...], keywords: tuple[str, ...]
) -> None:
    wanted = [*parameters, *(["*", *keywords] if keywords else [])]
    expected = f"{attribute_of(name)}({', '.join(wanted)})"
    if not callable(function):
        raise PluginError(f"{kind} {name!r}: expected a function {expected}, found {type(function).__name__}.")
    try:
        inspect.signature(function).bind(*parameters, **dict.fromkeys(keywords))
    except TypeError as error:
        found = inspect.signature(function)
        raise PluginError(f"{kind} {name!r}: expected {expected}, found {attribute_of(name)}{found}.") from error


def attribute_of(name: str) -> str:
    """The part of a plug-in name after the colon, or the whole short name."""
    return name.rpartition(":")[2]
