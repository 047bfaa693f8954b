"""The vocabulary: text to ids and back, with control tokens told apart from text that looks like them."""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from miles_core.errors import TokenError
from miles_tito.marks import Marker


class Vocabulary:
    """A fast tokenizer of its own, never changed after construction, so threads may share it.

    special_tokens: what templates see as `bos_token`, `eos_token` and so on. stop_ids: end-of-sequence ids that the
    model's files name. Nothing here ever truncates or pads.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, special_tokens: Mapping[str, str] | None = None, stop_ids: Sequence[int] = ()
    ) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.special_tokens = dict(special_tokens or {})
        added = tokenizer.get_added_tokens_decoder()
        self.controls: dict[str, int] = {token.content: number for number, token in added.items()}
        self.structural: frozenset[int] = frozenset(number for number, token in added.items() if token.special)
        """Ids of tokens that the vocabulary declares special."""
        self.marker = Marker(self.controls, [token.content for token in added.values() if token.special])
        eos = self.controls.get(self.special_tokens.get("eos_token", ""))
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys([*stop_ids, *([] if eos is None else [eos])]))

    @classmethod
    def from_folder(cls, folder: Path) -> "Vocabulary":
        """Read `tokenizer.json` and the configuration files beside it."""
        file = folder / "tokenizer.json"
        if not file.is_file():
            return cls.from_transformers(_auto_tokenizer(folder), stop_ids=_stop_ids(folder))
        tokenizer = _tokenizer(file)
        config = _json(folder / "tokenizer_config.json")
        _add_missing(tokenizer, config.get("added_tokens_decoder") or {})
        names = {**_json(folder / "special_tokens_map.json"), **config}
        return cls(tokenizer, special_tokens=_special_tokens(names), stop_ids=_stop_ids(folder))

    @classmethod
    def from_transformers(cls, tokenizer: Any, *, stop_ids: Sequence[int] = ()) -> "Vocabulary":
        """From a fast tokenizer of transformers; the object given is copied and stays untouched."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise TokenError(f"expected a fast tokenizer (with a tokenizer.json), found {type(tokenizer).__name__}.")
        special = {name: str(token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
        return cls(Tokenizer.from_str(backend.to_str()), special_tokens=special, stop_ids=stop_ids)

    @classmethod
    def of_bytes(
        cls, controls: Sequence[str], *, ordinary: Sequence[str] = (), special_tokens: Mapping[str, str] | None = None
    ) -> "Vocabulary":
        """A vocabulary of the 256 bytes and the control tokens given, special ones and ordinary ones like `<think>`."""
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokenizer = Tokenizer(models.BPE(vocab={symbol: n for n, symbol in enumerate(alphabet)}, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in dict.fromkeys(controls)])
        tokenizer.add_tokens([AddedToken(text, normalized=False) for text in dict.fromkeys(ordinary)])
        return cls(tokenizer, special_tokens=special_tokens)

    def encode(self, text: str) -> tuple[list[int], list[int]]:
        """Ids of a marked text and, for each id, the offset in the unmarked text where it starts."""
        regions = self.marker.regions(text)
        if len(regions) == 1 and not regions[0][1]:
            return self._encode_live(regions[0][0])
        ids: list[int] = []
        starts: list[int] = []
        done = 0
        for region, plain in regions:
            some, where = self._encode_plain(region) if plain else self._encode_live(region)
            ids += some
            starts += [done + offset for offset in where]
            done += len(region)
        return ids, starts

    def _encode_live(self, text: str) -> tuple[list[int], list[int]]:
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, [start for start, _ in encoding.offsets]

    def _encode_plain(self, text: str) -> tuple[list[int], list[int]]:
        encoding = self._plain.encode(text, add_special_tokens=False)
        if not self.structural.isdisjoint(encoding.ids):
            raise TokenError(
                f"expected {text[:60]!r} to encode as plain text, but this vocabulary gives a special token for it; "
                "the message cannot be used with this tokenizer."
            )
        return encoding.ids, [start for start, _ in encoding.offsets]

    @cached_property
    def _plain(self) -> Tokenizer:
        """The same model without its control tokens; it shares the model's memory."""
        plain = Tokenizer(self._tokenizer.model)
        if self._tokenizer.normalizer is not None:
            plain.normalizer = self._tokenizer.normalizer
        if self._tokenizer.pre_tokenizer is not None:
            plain.pre_tokenizer = self._tokenizer.pre_tokenizer
        return plain

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids, control tokens included; bytes that are not UTF-8 become U+FFFD."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def decode_marked(self, ids: Sequence[int]) -> str:
        """Text of the ids in which control tokens are live and whatever only spells one is marked."""
        parts: list[str] = []
        run: list[int] = []
        for number in ids:
            if number in self._control_ids:
                parts += [self.marker.mark(self.decode(run)), self._control_ids[number]]
                run = []
            else:
                run.append(number)
        return "".join([*parts, self.marker.mark(self.decode(run))])

    @cached_property
    def _control_ids(self) -> dict[int, str]:
        return {number: token for token, number in self.controls.items()}

    def id_of(self, token: str) -> int | None:
        """Id of a control token, or None."""
        return self.controls.get(token)

    def token_of(self, number: int) -> str:
        """The vocabulary entry with this id."""
        token = self._tokenizer.id_to_token(number)
        if token is None:
            raise TokenError(f"expected ids below {self.size}, found {number}; is this the model's own tokenizer?")
        return str(token)

    @cached_property
    def size(self) -> int:
        """Number of entries, control tokens included."""
        return int(self._tokenizer.get_vocab_size())

    def save(self, folder: Path) -> None:
        """Write `tokenizer.json` into the folder."""
        self._tokenizer.save(str(folder / "tokenizer.json"))

    def fingerprint_text(self) -> str:
        """A text that identifies the vocabulary."""
        return f"{self.size} {sorted(self.controls.items())} {self.special_tokens} {self.stop_ids}"


def read_template(folder: Path) -> str | None:
    """The chat template of a tokenizer folder, or None: `chat_template.jinja`, else the tokenizer's configuration."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return read_text(file)
    for name in ("tokenizer_config.json", "chat_template.json"):
        found = _json(folder / name).get("chat_template")
        if isinstance(found, list):
            named = {entry["name"]: entry["template"] for entry in found}
            found = named.get("tool_use", named.get("default"))
        if isinstance(found, str):
            return found
    return None


def read_text(file: Path) -> str:
    """The text of a template's file; TokenError when it is not UTF-8."""
    try:
        return file.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise TokenError(f"expected UTF-8 text in {file}, found byte {error.start} that is not.") from None


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TokenError(f"expected JSON in {file}, found {error}; download the file again.") from error
    return found if isinstance(found, dict) else {}


def _special_tokens(names: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for name, token in names.items():
        text = token.get("content") if isinstance(token, Mapping) else token
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found


def _stop_ids(folder: Path) -> list[int]:
    stops: list[int] = []
    for name in ("generation_config.json", "config.json"):
        found = _json(folder / name).get("eos_token_id")
        stops += found if isinstance(found, list) else [] if found is None else [found]
    return stops


def _add_missing(tokenizer: Tokenizer, decoder: Mapping[str, Mapping[str, Any]]) -> None:
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    for _, entry in sorted(decoder.items(), key=lambda item: int(item[0])):
        if entry["content"] not in known:
            flags = {name: entry[name] for name in ("single_word", "lstrip", "rstrip", "normalized") if name in entry}
            add = tokenizer.add_special_tokens if entry.get("special") else tokenizer.add_tokens
            add([AddedToken(entry["content"], special=bool(entry.get("special")), **flags)])


def _tokenizer(file: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:
        raise TokenError(f"expected a tokenizer in {file}, found {error}; download the file again.") from error


def _auto_tokenizer(folder: Path) -> Any:
    try:
        from transformers import AutoTokenizer  # noqa: PLC0415 (seconds to import, rarely needed)

        return AutoTokenizer.from_pretrained(str(folder))
    except (OSError, ValueError) as error:
        why = " ".join(str(error).split()).rstrip(".")
        raise TokenError(f"expected a tokenizer.json in {folder}, found none, and transformers: {why}.") from error
