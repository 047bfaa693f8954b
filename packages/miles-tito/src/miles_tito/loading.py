"""A model's or tokenizer's files, or a tokenizer object, to a vocabulary and its chat templates."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from miles_core.errors import TokenError
from miles_tito.template_files import named_templates, read_json, read_templates
from miles_tito.tiktoken_files import read_tiktoken, split_pattern, tiktoken_file
from miles_tito.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A vocabulary and the chat templates that came with it, by name."""

    vocabulary: Vocabulary
    templates: Mapping[str, str] = field(default_factory=dict)


def load(source: Any) -> Loaded:
    """From a model or tokenizer folder, a fast tokenizer of transformers, a `tokenizers.Tokenizer`, or a `Vocabulary`.

    Objects given are copied and stay untouched; one that transformers read from a folder has that folder's stops.
    TokenError when there is no fast tokenizer and none can be made.
    """
    if isinstance(source, Vocabulary):
        return Loaded(vocabulary=source)
    if isinstance(source, str | Path):
        folder = Path(source)
        if not folder.is_dir():
            raise TokenError(
                f"expected a folder with a tokenizer, found nothing at {folder}; download a model of the Hub first."
            )
        return Loaded(vocabulary=read_vocabulary(folder), templates=read_templates(folder))
    if isinstance(source, Tokenizer):
        return Loaded(vocabulary=Vocabulary(Tokenizer.from_str(source.to_str())))
    place = getattr(source, "name_or_path", None)
    stops = _stop_ids(Path(place)) if place else []
    templates = named_templates(getattr(source, "chat_template", None))
    return Loaded(vocabulary=vocabulary_of(source, stop_ids=stops), templates=templates)


def read_vocabulary(folder: Path) -> Vocabulary:
    """Read `tokenizer.json` and the configuration files beside it; without one, what can be made of the other files."""
    stops = _stop_ids(folder)
    config = read_json(folder / "tokenizer_config.json")
    tokenizer = _tokenizer(folder, config)
    if tokenizer is None:
        return vocabulary_of(_converted(folder, config), stop_ids=stops)
    names = {**read_json(folder / "special_tokens_map.json"), **config}
    _add_declared(tokenizer, folder, config, names)
    return Vocabulary(tokenizer, special_tokens=_special_tokens(names), stop_ids=stops)


def vocabulary_of(tokenizer: Any, *, stop_ids: list[int] | None = None) -> Vocabulary:
    """The vocabulary of a fast tokenizer of transformers."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise TokenError(f"expected a fast tokenizer (with a tokenizer.json), found {type(tokenizer).__name__}.")
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    return Vocabulary(Tokenizer.from_str(backend.to_str()), special_tokens=special, stop_ids=stop_ids or [])


def _tokenizer(folder: Path, config: Mapping[str, Any]) -> Tokenizer | None:
    """The tokenizer of `tokenizer.json`, else of a tiktoken file whose pattern is known, else None."""
    file = folder / "tokenizer.json"
    if file.is_file():
        try:
            return Tokenizer.from_file(str(file))
        except Exception as error:  # tokenizers raises no narrower class
            raise TokenError(f"expected a tokenizer in {file}, found {error}; download the file again.") from error
    ranks, pattern = tiktoken_file(folder), split_pattern(folder, config)
    if ranks is None or pattern is None:
        return None
    return read_tiktoken(ranks, pattern, [(number, entry["content"]) for number, entry in _declared(folder, config)])


def _special_tokens(names: Mapping[str, Any]) -> dict[str, str]:
    """What templates see as `bos_token` and so on: each a text, or an object with the text as `content`."""
    extra = names.get("extra_special_tokens")
    given = {**(extra if isinstance(extra, Mapping) else {}), **names}
    found = {name: _content(token) for name, token in given.items() if name.endswith("_token")}
    return {name: text for name, text in found.items() if text is not None}


def _content(token: Any) -> str | None:
    text = token.get("content") if isinstance(token, Mapping) else token
    return text if isinstance(text, str) else None


def _stop_ids(folder: Path) -> list[int]:
    """Every end-of-sequence id of the model's files: engines stop at all of them."""
    configs = [read_json(folder / "generation_config.json"), *_nested(read_json(folder / "config.json"))]
    stops: list[int] = []
    for config in configs:
        found = config.get("eos_token_id")
        for number in found if isinstance(found, list) else [found]:
            if isinstance(number, int) and not isinstance(number, bool):
                stops.append(number)
            elif number is not None:
                raise TokenError(f"expected ids as eos_token_id in the configuration of {folder}, found {number!r}.")
    return stops


_INNER = ("text_config", "language_config", "llm_config", "thinker_config")
"""Where the configuration of a multimodal model keeps that of its language model."""


def _nested(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield config
    for name in _INNER:
        if isinstance(config.get(name), Mapping):
            yield from _nested(config[name])


def _add_declared(tokenizer: Tokenizer, folder: Path, config: Mapping[str, Any], names: Mapping[str, Any]) -> None:
    """Add the tokens that configuration files declare and `tokenizer.json` lacks; TokenError where their ids differ."""
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    for number, entry in _declared(folder, config):
        if entry["content"] not in known:
            _add(tokenizer, entry)
        found = tokenizer.token_to_id(entry["content"])
        if found != number:
            raise TokenError(
                f"expected {entry['content']!r} to be token {number}, as {folder} declares, but tokenizer.json "
                f"gives it {found}; the files do not belong together, download them again."
            )
    for text in _named_specials(names):
        if text not in known and tokenizer.token_to_id(text) is not None:
            _add(tokenizer, {"content": text, "special": True})


def _declared(folder: Path, config: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any]]]:
    """`(id, entry)` of the added tokens in `tokenizer_config.json` and the older `added_tokens.json`, by id."""
    entries = {int(number): entry for number, entry in (config.get("added_tokens_decoder") or {}).items()}
    for text, number in read_json(folder / "added_tokens.json").items():
        entries.setdefault(int(number), {"content": text})
    return sorted(entries.items())


def _named_specials(names: Mapping[str, Any]) -> Iterator[str]:
    """Tokens that are special by their role though the vocabulary holds them as ordinary entries."""
    specials = _special_tokens(names)
    yield from (specials[name] for name in ("bos_token", "eos_token") if name in specials)
    for name in ("additional_special_tokens", "extra_special_tokens"):
        for token in names.get(name) or () if isinstance(names.get(name), list) else ():
            text = _content(token)
            if text:
                yield text


def _add(tokenizer: Tokenizer, entry: Mapping[str, Any]) -> None:
    flags = {name: entry[name] for name in ("single_word", "lstrip", "rstrip", "normalized") if name in entry}
    special = bool(entry.get("special"))
    add = tokenizer.add_special_tokens if special else tokenizer.add_tokens
    add([AddedToken(entry["content"], special=special, **flags)])


def _converted(folder: Path, config: Mapping[str, Any]) -> Any:
    """The fast tokenizer that transformers makes of a folder without `tokenizer.json`."""
    if config.get("auto_map"):
        raise TokenError(
            f"expected a tokenizer.json in {folder}, found a tokenizer that is Python code of its own; {_CONVERT}"
        )
    if not any(any(folder.glob(kind)) for kind in _OTHER_FORMS):
        raise TokenError(
            f"expected a tokenizer.json in {folder}, found no vocabulary at all; name the folder of the tokenizer."
        )
    try:
        from transformers import AutoTokenizer  # noqa: PLC0415 (seconds to import, rarely needed)

        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # whatever fails in there, the folder has no tokenizer that can be used
        why = (" ".join(str(error).split()) or type(error).__name__)[:300].rstrip(".")
        raise TokenError(
            f"expected a tokenizer.json in {folder}, found none, and transformers: {why}. {_INSTALL} {_CONVERT}"
        ) from error


_OTHER_FORMS = ("*.model", "*.tiktoken", "vocab.*", "merges.txt", "tekken.json", "spiece*", "*.bpe", "*.spm")
"""Files that transformers may know how to convert."""

_INSTALL = "A SentencePiece model needs sentencepiece and protobuf installed, a tiktoken one tiktoken."
_CONVERT = (
    "Or make a tokenizer.json once: load the tokenizer with transformers' AutoTokenizer where it works, and save it "
    "with save_pretrained."
)
