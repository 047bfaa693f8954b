"""From a recipe's name to a checked configuration: layers, relative paths, origins, schema."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from miles_cli.recipes import DEFAULT, find
from miles_cli.run_config import RunConfig, SftRunConfig
from miles_core.config import Resolved, build, parse_override, read_toml
from miles_core.errors import ConfigError

Run = RunConfig | SftRunConfig
KINDS: Mapping[str, type[RunConfig] | type[SftRunConfig]] = {"rl": RunConfig, "sft": SftRunConfig}
PATHS = ("model.path", "data.path", "sft.path", "weights.folder")
PLUGINS = (
    "rollout.generate",
    "rollout.agent",
    "rollout.on_abort",
    "reward.name",
    "sessions.matcher",
    "sessions.sample_picker",
    "algorithm.advantage",
    "algorithm.loss",
    "algorithm.reduction",
    "algorithm.correction",
)
USUAL_TYPES = {"engines": "local", "weights": "shared_memory"}
FREE_ON_RESUME = ("run.steps", "run.keep", "run.save_every", "run.start_timeout_s", "run.step_timeout_s", "ray")


def load(recipe: str, overrides: Sequence[str]) -> Resolved[Any]:
    """The configuration of a built-in recipe or TOML file with `--set` values on top.

    Paths of the recipe are relative to its folder, paths of an override to the working directory. Raises ConfigError.
    """
    path = find(recipe)
    return _build([(path.name, anchored(read_toml(path), path.parent)), *_override_layers(overrides)])


def load_resumed(recipe: str | None, overrides: Sequence[str], out: Path | None) -> Resolved[Any]:
    """The configuration a run folder was started with, for `--resume`.

    What the training result depends on may not change: a recipe or override that differs there is refused with the
    names of the values. More steps, other deadlines or another cluster are welcome.
    """
    if out is None:
        out = Path("runs") / load(DEFAULT if recipe is None else recipe, ()).config.run.name
    stored = out / "config.toml"
    if not stored.is_file():
        raise ConfigError(f"--resume: expected a run in {out}, found no config.toml there; start it without --resume.")
    before = _build([("config.toml", read_toml(stored))])
    layers = _override_layers(overrides)
    now = _build([("config.toml", read_toml(stored)), *layers]) if recipe is None else load(recipe, overrides)
    changed = [key for key in _differences(before.config, now.config) if not _free(key)]
    if changed:
        raise ConfigError(
            f"--resume: {', '.join(changed)} differ from the run in {out}; keep them, or give another --out."
        )
    return now


def lines_with_origin(resolved: Resolved[Any]) -> list[str]:
    """`section.key = value  # origin`, a line for each value, in the order of the schema; values as TOML has them."""
    flat = _flat(resolved.config.model_dump(mode="json"))
    shown = {key: _assignment(key, value) for key, value in flat.items()}
    width = min(72, max(map(len, shown.values())))
    return [f"{text:<{width}}  # {_origin(resolved.origins, key)}" for key, text in shown.items()]


def _assignment(key: str, value: Any) -> str:
    if value is None:
        return f"# {key} is not set"
    # JSON writes strings, numbers, booleans and lists of them as TOML does.
    return f"{key} = {json.dumps(value, ensure_ascii=False)}"


def json_schema() -> dict[str, Any]:
    """JSON schema of a recipe file of either kind."""
    return TypeAdapter(RunConfig | SftRunConfig).json_schema()


def anchored(tree: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """The tree with relative paths, and plug-ins named `file.py:attribute`, made absolute from `base`."""
    result = {key: dict(value) if isinstance(value, Mapping) else value for key, value in tree.items()}
    for dotted in (*PATHS, *PLUGINS):
        section, key = dotted.split(".")
        inner = result.get(section)
        value = inner.get(key) if isinstance(inner, dict) else None
        is_file = isinstance(value, str) and (dotted in PATHS or ".py:" in value)
        if isinstance(inner, dict) and isinstance(value, str) and is_file:
            inner[key] = str(base / value)
    sessions = result.get("sessions")
    if isinstance(sessions, dict) and isinstance(sessions.get("sample_processors"), list | tuple):
        sessions["sample_processors"] = [_anchored_name(name, base) for name in sessions["sample_processors"]]
    rollout = result.get("rollout")
    if isinstance(rollout, dict) and isinstance(rollout.get("filters"), list):
        rollout["filters"] = [_anchored_filter(entry, base) for entry in rollout["filters"]]
    return result


def _anchored_filter(entry: Any, base: Path) -> Any:
    return {**entry, "name": _anchored_name(entry.get("name"), base)} if isinstance(entry, Mapping) else entry


def _anchored_name(name: Any, base: Path) -> Any:
    return str(base / name) if isinstance(name, str) and ".py:" in name else name


def _build(layers: Sequence[tuple[str, Mapping[str, Any]]]) -> Resolved[Any]:
    kind: object = "rl"
    for _, layer in layers:
        kind = layer.get("kind", kind)
    if kind not in KINDS:
        raise ConfigError(f"kind: expected one of {', '.join(map(repr, KINDS))}, found {kind!r}.")
    return build(KINDS[str(kind)], [("default", _default_types(layers) if kind == "rl" else {}), *layers])


def _default_types(layers: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """The type of a section that is given without one, where there is a usual one."""
    return {name: {"type": usual} for name, usual in USUAL_TYPES.items() if any(name in layer for _, layer in layers)}


def _override_layers(overrides: Sequence[str]) -> list[tuple[str, Mapping[str, Any]]]:
    return [(f"--set {text.split('=')[0]}", anchored(parse_override(text), Path.cwd())) for text in overrides]


def _differences(before: Run, now: Run) -> list[str]:
    old, new = (_flat(config.model_dump(mode="json")) for config in (before, now))
    return sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))


def _free(key: str) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in FREE_ON_RESUME)


def _origin(origins: Mapping[str, str], key: str) -> str:
    while key and key not in origins:
        key = key.rpartition(".")[0]
    return origins.get(key, "default")


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat.update(_flat(value, f"{name}."))
        else:
            flat[name] = value
    return flat
