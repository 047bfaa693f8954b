"""Where a run's model comes from, as a folder. What needs no work is answered at once, the rest is made once."""

import tempfile
from pathlib import Path

from miles_cli.checks import Model, package_folder
from miles_cli.run_config import FolderModel, FreshModel, GgufPackageModel, PackageDataModel
from miles_core import env
from miles_core.seeds import derive


def ready_folder(model: Model) -> Path | None:
    """The model's folder when it exists already, None when `make_folder` has to make it. Imports nothing heavy."""
    if isinstance(model, FolderModel):
        return model.path
    if isinstance(model, PackageDataModel):
        return package_folder(model)
    if isinstance(model, GgufPackageModel):
        made = cache_folder(model)
        return made if made.is_dir() else None
    return None


def cache_folder(model: GgufPackageModel) -> Path:
    """Where a converted GGUF file is kept: in Miles' cache folder, without one among the temporary files."""
    root = env.cache_folder() or Path(tempfile.gettempdir()) / "miles"
    stem = Path(model.file).stem if model.file else "model"
    return root / "models" / f"{model.package}-{stem}"


def make_folder(model: Model, target: Path, seed: int) -> Path:
    """Make the model's folder and return it; for the types that `ready_folder` has no answer for."""
    if isinstance(model, GgufPackageModel):
        from miles_cli.recipes.smollm2.convert import convert

        folder = cache_folder(model)
        folder.parent.mkdir(parents=True, exist_ok=True)
        convert(folder, package=model.package, file=model.file)
        return folder
    assert isinstance(model, FreshModel)
    return _draw(model.path, target, derive(seed, "model"))


def _draw(source: Path, target: Path, seed: int) -> Path:
    """A model with weights drawn from the seed, beside the tokenizer files of `source`; equal seeds, equal bits."""
    import shutil

    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if (target / "config.json").is_file():
        return target
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % (1 << 63))
        config = AutoConfig.from_pretrained(source, local_files_only=True)
        drawn = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    unfinished = target.with_name(f".{target.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    drawn.save_pretrained(unfinished)
    for file in source.iterdir():
        if file.is_file() and file.name != "config.json" and file.suffix != ".safetensors":
            shutil.copy2(file, unfinished / file.name)
    unfinished.rename(target)
    return target
