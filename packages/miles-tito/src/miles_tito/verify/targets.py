"""What there is to check under a path: a template's file, the templates of a model folder, or a folder of templates."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from miles_core.errors import TokenError
from miles_tito.render import ChatTemplate
from miles_tito.template_files import read_templates, read_text
from miles_tito.tokenizer import ChatTokenizer
from miles_tito.verify.vocabulary import default_vocabulary

_OF_A_MODEL = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "config.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One template. path: its file, or the folder it lies in. source: its text, where it has no file of its own.

    tokenizer: the folder with its vocabulary; None for a vocabulary of bytes and the template's control tokens.
    broken: why it cannot be checked, for a folder among others whose files already say so.
    """

    name: str
    path: Path
    source: str | None = None
    tokenizer: Path | None = None
    broken: str = ""


def targets_in(path: Path, *, tokenizer: Path | None = None) -> list[Target]:
    """Every template under the path, in order of name; TokenError when there is none.

    tokenizer: a folder whose vocabulary is used in place of the default one, or of the model's own.
    """
    if path.is_file():
        return [Target(name=path.name, path=path, tokenizer=tokenizer)]
    if not path.is_dir():
        raise TokenError(f"expected a model folder, a .jinja file or a folder of them, found nothing at {path}.")
    if _is_model(path):
        return _of_model(path, tokenizer)
    files = sorted(path.glob("*.jinja"))
    if files:
        return [Target(name=file.name, path=file, tokenizer=tokenizer) for file in files]
    models = [folder for folder in sorted(path.iterdir()) if folder.is_dir() and _is_model(folder)]
    if not models:
        raise TokenError(f"expected a tokenizer, .jinja files or model folders in {path}, found none of them.")
    return [target for folder in models for target in _of_one(folder, tokenizer)]


def _is_model(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _OF_A_MODEL)


def _of_one(folder: Path, tokenizer: Path | None) -> list[Target]:
    """The templates of a model among others: what is wrong with it does not keep the others from being checked."""
    try:
        return _of_model(folder, tokenizer)
    except TokenError as error:
        why = str(error)
    except OSError as error:
        why = f"cannot be read: {error.strerror or error}."
    return [Target(name=folder.name, path=folder, broken=why)]


def _of_model(folder: Path, tokenizer: Path | None) -> list[Target]:
    sources = read_templates(folder)
    if not sources:
        raise TokenError(f"expected a chat template in {folder}, found none.")
    name = folder.resolve().name
    return [
        Target(
            name=name if len(sources) == 1 else f"{name}:{which}",
            path=folder,
            source=source,
            tokenizer=tokenizer or folder,
        )
        for which, source in sorted(sources.items())
    ]


def load(target: Target, kwargs: Mapping[str, Any]) -> ChatTokenizer:
    """The target's incremental tokenizer; TokenError when its template or vocabulary cannot be used."""
    if target.broken:
        raise TokenError(target.broken)
    source = read_text(target.path) if target.source is None else target.source
    template = ChatTemplate(source, kwargs=kwargs)
    if target.tokenizer is not None:
        return ChatTokenizer.from_pretrained(target.tokenizer, chat_template=source, template_kwargs=kwargs)
    vocabulary = default_vocabulary(template)
    return ChatTokenizer(template.with_special_tokens(vocabulary.special_tokens), vocabulary)
