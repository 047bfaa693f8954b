"""Write the trained model as a Hugging Face folder."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)


def export_model(model: nn.Module, tensors: Mapping[str, Tensor], folder: Path, *, source: Path) -> None:
    """Write configuration, weights (safetensors, in their dtype) and the tokenizer files of `source` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    save = model.get_submodule("causal_lm").save_pretrained
    save(str(folder), state_dict=dict(tensors))
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    _set_dtype(folder / "config.json", next(iter(tensors.values())))


def _set_dtype(path: Path, tensor: Tensor) -> None:
    """Name the dtype of the weights in the configuration: readers load in it."""
    config = json.loads(path.read_text())
    config.pop("torch_dtype", None)
    config["dtype"] = str(tensor.dtype).removeprefix("torch.")
    temporary = path.with_suffix(".partial")
    temporary.write_text(json.dumps(config, indent=2) + "\n")
    os.replace(temporary, path)
