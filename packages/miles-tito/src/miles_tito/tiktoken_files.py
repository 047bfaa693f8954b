"""Vocabularies in tiktoken's file form, whose splitting pattern stands in the tokenizer's Python code (Kimi)."""

import ast
import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from miles_core.errors import TokenError


def tiktoken_file(folder: Path) -> Path | None:
    """The folder's vocabulary in tiktoken's form, or None."""
    found = [folder / "tiktoken.model", *sorted(folder.glob("*.tiktoken"))]
    return next((file for file in found if file.is_file()), None)


def split_pattern(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The pattern that the tokenizer's code splits text with, read and never run; None when it is no plain text.

    Code that also normalises text does more than a pattern says, so nothing is taken from it.
    """
    named = (config.get("auto_map") or {}).get("AutoTokenizer") or []
    place = next((name for name in ([named] if isinstance(named, str) else named) if isinstance(name, str)), "")
    file = folder / f"{place.rpartition('--')[2].partition('.')[0]}.py"
    if not place or not file.is_file():
        return None
    source = file.read_text(encoding="utf-8")
    if "unicodedata" in source:
        return None
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    return next(filter(None, (_pattern(node) for node in ast.walk(tree))), None)


def read_tiktoken(file: Path, pattern: str, declared: Iterable[tuple[int, str]]) -> Tokenizer:
    """The byte-level tokenizer of ranks and a pattern. declared: `(id, text)` of tokens outside the ranks."""
    ranks = _ranks(file)
    vocab = ranks | {text: number for number, text in declared}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=list(_merges(ranks)), ignore_merges=True))
    splits = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([splits, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pattern(node: ast.AST) -> str | None:
    """The text of `pat_str = "..."` or `pat_str = "|".join(["...", ...])`."""
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return None
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    names = [target.id.lower() for target in targets if isinstance(target, ast.Name)]
    if not {"pat_str", "pattern"} & set(names) or node.value is None:
        return None
    value = node.value
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "join":
        parts = value.args[0].elts if value.args and isinstance(value.args[0], ast.List | ast.Tuple) else []
        texts = [_text(part) for part in parts]
        between = _text(value.func.value)
        known = [text for text in texts if text is not None]
        return between.join(known) if between is not None and known and len(known) == len(texts) else None
    return _text(value)


def _text(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _ranks(file: Path) -> dict[str, int]:
    """Token (a character for each byte) and rank of every line; TokenError for any other kind of line."""
    ranks: dict[str, int] = {}
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        try:
            token, rank = line.split()
            ranks[_printable(base64.b64decode(token, validate=True))] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise TokenError(
                f"expected a token in base64 and its rank in line {number} of {file}, found {line[:60]!r}; "
                "download the file again."
            ) from error
    return ranks


def _merges(ranks: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Every pair that makes a token, in the order of the tokens' ranks: the lowest rank is merged first."""
    for token in sorted(ranks, key=ranks.__getitem__):
        pairs = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        yield from sorted(
            (pair for pair in pairs if pair[0] in ranks and pair[1] in ranks),
            key=lambda pair: (ranks[pair[0]], ranks[pair[1]]),
        )


def _alphabet() -> dict[int, str]:
    """The printable character that stands for each byte in a byte-level vocabulary."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(plain)]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + place) for place, byte in enumerate(others)}


_ALPHABET = _alphabet()


def _printable(token: bytes) -> str:
    return "".join(map(_ALPHABET.__getitem__, token))
