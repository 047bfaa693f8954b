"""Python literals that JSON can express, read without evaluating anything."""

import ast
import re
from typing import Any

from miles_tito.parsers.calls import Malformed

_STRING = re.compile(r"""(?s)([A-Za-z]{0,2})("(?:\\.|[^"\\])*(?:"|\\?\Z)|'(?:\\.|[^'\\])*(?:'|\\?\Z))""")
"""A string with its prefix. One that never ends is taken whole, so that no character is tried again and again."""
_UNKNOWN_ESCAPE = re.compile(r"""(?s)\\(?:([\\'"abfnrtvx0-7NuU\n])|(?=.))""")
_JSON_WORDS = {"true": True, "false": False, "null": None}


def python_value(text: str) -> Any:
    """Value of the literal; the words of JSON count as literals too. `Malformed` for anything else."""
    try:
        return _value_of(ast.parse(_STRING.sub(_escaped, text.strip()), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Malformed(f"expected a literal, found {error}") from error


def _escaped(found: re.Match[str]) -> str:
    r"""The string with the backslash of an unknown escape (`\d`) doubled: so Python reads it, but with a warning."""
    if "r" in found[1].lower():
        return found[0]
    return found[1] + _UNKNOWN_ESCAPE.sub(lambda escape: escape[0] if escape[1] else "\\\\", found[2])


def _value_of(item: ast.expr) -> Any:
    if isinstance(item, ast.Name) and item.id in _JSON_WORDS:
        return _JSON_WORDS[item.id]
    if isinstance(item, ast.List | ast.Tuple):
        return [_value_of(entry) for entry in item.elts]
    if isinstance(item, ast.Dict):
        keys = [None if key is None else _value_of(key) for key in item.keys]
        if any(not isinstance(key, str) for key in keys) or len(set(keys)) < len(keys):
            raise Malformed("expected each key once and as a string")
        return dict(zip(keys, map(_value_of, item.values), strict=True))
    if isinstance(item, ast.UnaryOp) and isinstance(item.op, ast.USub):
        value = _value_of(item.operand)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return -value
    if isinstance(item, ast.Constant) and isinstance(item.value, str | int | float | bool | None):
        return item.value
    raise Malformed("expected literals that JSON can hold")
