"""A choice with its options, as a command line writes it."""

from typing import Any

from miles_core.config import parse_override
from miles_core.errors import ConfigError


def choice_of(text: str) -> dict[str, Any]:
    """The table of a union by type that `NAME[,option=value...]` means; a NAME with a colon is a plug-in.

    `session_affinity,load_factor=1.5`, `mine.py:Policy,seed=3`. ConfigError when it is not written so.
    """
    name, *given = text.split(",")
    options: dict[str, Any] = {}
    for option in given:
        if "=" not in option or option.startswith("type="):
            raise ConfigError(f"{text!r}: expected NAME,option=value, found {option!r}.")
        options |= parse_override(option)
    return {"type": "plugin", "name": name, "options": options} if ":" in name else {"type": name, **options}
