"""The options of a check as a command line gives them, checked; the same for every command that offers them."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from miles_core.errors import ConfigError, TokenError
from miles_tito.verify.check import Settings

_LONGEST_S = 86400.0

Thinking = Literal["on", "off", "both"]
Format = Literal["text", "json", "junit", "sarif"]
FailOn = Literal["error", "warning"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to check and how to say it.

    paths: templates, model folders or folders of templates. kwargs: template arguments as a JSON object; arg: the same
    as `name=value`, each value JSON where it is JSON. require, roles: names, each also several with commas between.
    output: a file for the report; the text then still goes to the terminal. pin: a file with the derived profile.
    """

    paths: tuple[Path, ...]
    tokenizer: Path | None = None
    kwargs: str = "{}"
    arg: tuple[str, ...] = ()
    tools: bool = True
    thinking: Thinking = "both"
    require: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    format: Format = "text"
    output: Path | None = None
    fail_on: FailOn = "error"
    explain: bool = False
    pin: Path | None = None
    timeout_s: float = 120.0
    jobs: int | None = None

    def __post_init__(self) -> None:
        for name, allowed in (("thinking", Thinking), ("format", Format), ("fail_on", FailOn)):
            if getattr(self, name) not in get_args(allowed):
                found = getattr(self, name)
                option = f"--{name.replace('_', '-')}"
                raise ConfigError(f"expected {option} among {', '.join(get_args(allowed))}, found {found!r}.")
        if not self.paths:
            raise ConfigError("expected a model folder, a .jinja file or a folder of them, found no path.")
        if not 0 < self.timeout_s <= _LONGEST_S:
            raise ConfigError(f"expected --timeout-s above 0 and at most {_LONGEST_S:g}, found {self.timeout_s:g}.")
        if self.jobs is not None and self.jobs < 1:
            raise ConfigError(f"expected --jobs of at least 1, found {self.jobs}.")

    @property
    def settings(self) -> Settings:
        """What every check covers; ConfigError for arguments, kinds or roles that cannot be used."""
        try:
            return Settings(
                template_kwargs={**_object(self.kwargs), **dict(map(_pair, self.arg))},
                tools=self.tools,
                thinking={"on": True, "off": False, "both": None}[self.thinking],
                required=_names(self.require) or None,
                roles=_names(self.roles),
            )
        except TokenError as error:
            raise ConfigError(str(error)) from error

    @property
    def num_jobs(self) -> int:
        """Processes at once: as many as there are cores, unless given."""
        return self.jobs or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else self.jobs or 1


def _object(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"expected --kwargs as a JSON object, found {text[:200]!r} ({error}).") from error
    if not isinstance(found, dict):
        raise ConfigError(f"expected --kwargs as a JSON object, found {text[:200]!r}.")
    return found


def _pair(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise ConfigError(f"expected --arg as name=value, found {text!r}.")
    try:
        return name, json.loads(value)
    except RecursionError as error:
        raise ConfigError(f"expected --arg {name} as JSON that can be read, found {value[:80]!r}.") from error
    except ValueError:
        return name, {"True": True, "False": False, "None": None}.get(value, value)


def _names(given: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for text in given for name in text.replace(",", " ").split())
