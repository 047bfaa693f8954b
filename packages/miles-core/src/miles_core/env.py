"""The only reader of the process environment."""

import os
from collections.abc import Mapping
from pathlib import Path


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


def cache_folder() -> Path | None:
    """Where Miles keeps what it can make again: `$MILES_CACHE`, else `$XDG_CACHE_HOME/miles`, else `~/.cache/miles`.

    None when `MILES_CACHE` is "off", or there is no home folder.
    """
    named = get("MILES_CACHE")
    if named is not None:
        return None if named == "off" else Path(named)
    try:
        return Path(get("XDG_CACHE_HOME") or Path.home() / ".cache") / "miles"
    except RuntimeError:  # no home folder
        return None
