"""A model folder as a run needs it, judged by its files: what is missing, cut short or no model at all."""

import json
from pathlib import Path
from typing import Any

from miles_core.errors import ConfigError

TOKENIZER = "tokenizer.json"
INDEX = "model.safetensors.index.json"
TEMPLATE = "chat_template.jinja"
_OPTIONAL = ("tokenizer_config.json", "generation_config.json", "special_tokens_map.json", INDEX)
_MOST_HEADER_BYTES = 100_000_000
"""The limit of the safetensors format."""


def check_model_folder(key: str, path: Path, *, weights: bool) -> None:
    """Raise ConfigError unless the folder holds a config, a tokenizer and (when `weights`) whole safetensors files.

    key: the option or recipe key that named the folder, for the sentence. Only the files' heads are read, no tensor.
    """
    if not path.is_dir():
        raise ConfigError(f"{key}: expected a model folder at {path}, found {'a file' if path.exists() else 'none'}.")
    for name in ("config.json", TOKENIZER):
        if not (path / name).is_file():
            raise ConfigError(f"{key}: expected {name} in the model folder {path}, found none.")
    config = _json_object(key, path / "config.json")
    if not isinstance(config.get("model_type"), str):
        raise ConfigError(f"{key}: expected a model_type in {path / 'config.json'}, found none; get the file again.")
    _json_object(key, path / TOKENIZER)
    for name in _OPTIONAL:
        if (path / name).is_file():
            _json_object(key, path / name)
    if weights:
        _check_weights(key, path)


def check_chat_template(key: str, path: Path) -> None:
    """Raise ConfigError unless a chat template lies in the folder."""
    config = path / "tokenizer_config.json"
    if (path / TEMPLATE).is_file() or (path / "chat_template.json").is_file():
        return
    if not config.is_file() or not _json_object(key, config).get("chat_template"):
        raise ConfigError(
            f"{key}: expected a chat template in the model folder {path}, found none; put one there as {TEMPLATE}."
        )


def _check_weights(key: str, path: Path) -> None:
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise ConfigError(f"{key}: expected safetensors weights in {path}, found none.")
    if (path / INDEX).is_file():
        named = _json_object(key, path / INDEX).get("weight_map")
        wanted = {str(name) for name in named.values()} if isinstance(named, dict) else set()
        missing = sorted(wanted - {file.name for file in files})
        if missing:
            raise ConfigError(f"{key}: expected the {len(wanted)} files of {INDEX} in {path}, found no {missing[0]}.")
    for file in files:
        _check_safetensors(key, file)


def _check_safetensors(key: str, file: Path) -> None:
    """The format: 8 bytes with the header's length, a JSON header, then the tensors without a gap."""
    try:
        size = file.stat().st_size
        with file.open("rb") as handle:
            length = int.from_bytes(handle.read(8), "little")
            fits = size >= 8 and length <= min(size - 8, _MOST_HEADER_BYTES)
            header = json.loads(handle.read(length) if fits else b"")
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        wanted = 8 + length + max(ends, default=0)
    except OSError as error:
        raise ConfigError(f"{key}: cannot read {file}: {error.strerror or error}.") from None
    except (ValueError, TypeError, LookupError, AttributeError):
        raise ConfigError(f"{key}: expected safetensors in {file}, found no header of tensors; get it again.") from None
    if size != wanted:
        raise ConfigError(
            f"{key}: expected {wanted} bytes in {file}, as its header says, found {size}; get the file again."
        )


def _json_object(key: str, file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"{key}: cannot read {file}: {error.strerror or error}.") from None
    except ValueError as error:
        raise ConfigError(f"{key}: expected JSON in {file}, found text that is not ({error}); get it again.") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{key}: expected a JSON object in {file}, found {type(found).__name__}.")
    return found
