"""One loader for everything a user may replace: a short name, an entry point, or `module:attribute`."""

import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import xxhash

from miles_core.builtins import BUILTINS
from miles_core.errors import PluginError


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How an extension point is called. `shown` is the signature as an error message prints it."""

    shown: str
    positional: int = 0
    keywords: tuple[str, ...] = ()
    waits: Literal["sync", "async", "either"] = "either"


SHAPES: Mapping[str, Shape] = {
    "rewards": Shape(shown="(sample, prompt, **options) -> float, async or not", positional=2),
    "generates": Shape(shown="async (prompt, context) -> Sample | list[Sample]", positional=2, waits="async"),
    "agents": Shape(
        shown="(*, base_url, prompt, request_kwargs, metadata) -> dict | None, async or not",
        keywords=("base_url", "prompt", "request_kwargs", "metadata"),
    ),
    "abort_hooks": Shape(
        shown="(*, prompt, metadata, reason), async or not", keywords=("prompt", "metadata", "reason")
    ),
    "group_filters": Shape(shown="(group, **options) -> Verdict", positional=1, waits="sync"),
    "data_sources": Shape(
        shown="(config, *, seed, base) -> DataSource", positional=1, keywords=("seed", "base"), waits="sync"
    ),
    "message_matchers": Shape(
        shown="(message) -> str, equal for messages that are the same", positional=1, waits="sync"
    ),
    "sample_pickers": Shape(shown="(turns) -> the last turn of each trajectory to keep", positional=1, waits="sync"),
    "sample_processors": Shape(shown="(samples) -> list[Sample]", positional=1, waits="sync"),
    "router_policies": Shape(shown="(**options) -> Policy", waits="sync"),
    "router_middleware": Shape(shown="(app, **options) -> ASGI app", positional=1),
}


def load(kind: str, name: str, *, base: Path | None = None, options: Iterable[str] = ()) -> Any:
    """The object called `name` for the extension point `kind`, its signature checked; PluginError otherwise.

    name: a built-in short name, an entry point of the group `miles.<kind>`, `module:attribute`, or
    `path/to/file.py:attribute` with the path relative to `base` (the recipe's folder; the working folder when None).
    options: names of the keyword arguments it will be called with; one that it does not take is an error here.
    """
    if kind not in SHAPES:
        raise PluginError(f"expected a kind of plug-in among {', '.join(SHAPES)}, found {kind!r}.")
    found = _resolve(kind, name, base)
    check_signature(kind, found, name=name, options=options)
    return found


def is_known(kind: str, name: str) -> bool:
    """Whether `name` is a built-in short name or an entry point of the kind; nothing is imported."""
    return name in BUILTINS.get(kind, {}) or any(point.name == name for point in entry_points(group=f"miles.{kind}"))


def attribute_at(name: str, base: Path | None = None) -> Any:
    """The object at `module:attribute` or `file.py:attribute`, its signature not checked; PluginError otherwise."""
    return _attribute(name, base)


def _resolve(kind: str, name: str, base: Path | None) -> Any:
    built_in = BUILTINS.get(kind, {})
    if name in built_in:
        return _attribute(built_in[name], None)
    if ":" in name:
        return _attribute(name, base)
    published = {point.name: point for point in entry_points(group=f"miles.{kind}")}
    if name in published:
        return _attribute(published[name].value, None)
    names = sorted({*built_in, *published})
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"nearest: {', '.join(close)}" if close else f"known: {', '.join(names) or 'none'}"
    raise PluginError(f"{kind}: no plug-in is called {name!r} ({hint}); a plug-in of your own is 'module:attribute'.")


def _attribute(name: str, base: Path | None) -> Any:
    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        raise PluginError(f"expected a plug-in as module:attribute, found {name!r}.")
    found: Any = _file_module(place, base) if place.endswith(".py") else _module(place)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise PluginError(f"plug-in {name!r}: {place} has no {attribute!r}{_near(attribute, found)}.")
        found = getattr(found, part)
    return found


def _near(attribute: str, holder: Any) -> str:
    public = [n for n in vars(holder) if not n.startswith("_")] if hasattr(holder, "__dict__") else []
    close = difflib.get_close_matches(attribute, public, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}" if close else ""


def _module(place: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except (Exception, SystemExit) as error:
        raise PluginError(f"plug-in module {place!r} cannot be imported: {type(error).__name__}: {error}.") from error


def _file_module(place: str, base: Path | None) -> ModuleType:
    path = ((base or Path.cwd()) / place).resolve()
    if not path.is_file():
        raise PluginError(f"plug-in file {place!r}: expected a file at {path}, found none.")
    # One module object a file: its classes keep their identity, and dataclasses find their module by name.
    name = f"miles_plugin_{path.stem}_{xxhash.xxh3_64_hexdigest(str(path).encode())}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PluginError(f"plug-in file {place!r}: expected Python source.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception | SystemExit):
            raise
        raise PluginError(f"plug-in file {place!r} cannot be run: {type(error).__name__}: {error}.") from error
    return module


def check_signature(kind: str, found: object, *, name: str, options: Iterable[str] = ()) -> None:
    """PluginError unless `found` can be called the way the extension point calls it, with these options."""
    shape = SHAPES[kind]
    start = f"{kind} plug-in {name!r}: expected {shape.shown}"
    if not callable(found):
        raise PluginError(f"{start}, found {type(found).__name__}.")
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return
    keywords = {**dict.fromkeys(shape.keywords), **dict.fromkeys(options)}
    try:
        signature.bind(*[None] * shape.positional, **keywords)
    except TypeError as error:
        with_options = f" called with the options {', '.join(options)}" if tuple(options) else ""
        raise PluginError(f"{start}{with_options}, found {signature} ({error}).") from None
    is_async = inspect.iscoroutinefunction(found) or inspect.iscoroutinefunction(getattr(found, "__call__", None))  # noqa: B004
    if shape.waits == "async" and not is_async:
        raise PluginError(f"{start}, found a function that is not async.")
    if shape.waits == "sync" and is_async:
        raise PluginError(f"{start}, found an async function.")
