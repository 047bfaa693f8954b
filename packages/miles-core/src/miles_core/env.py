"""The only reader of the process environment."""

import os
from collections.abc import Mapping


def get(name: str, default: str | None = None) -> str | None:
    """Value of the environment variable, or the default; an empty value counts as unset."""
    return os.environ.get(name) or default


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The environment for a child process: this process's own with `extra` on top."""
    return {**os.environ, **extra}


def export(name: str, value: str, *, override: bool = False) -> None:
    """Set a variable for this process and its children; a value set by the user stays unless `override`."""
    if override or not os.environ.get(name):
        os.environ[name] = value
