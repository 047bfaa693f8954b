"""The vocabulary: text to ids and back, with control tokens told apart from text that looks like them."""

import copy
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path

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

    def with_stop_ids(self, stop_ids: Sequence[int]) -> "Vocabulary":
        """The same vocabulary with more end-of-sequence ids."""
        other = copy.copy(self)
        other.stop_ids = tuple(dict.fromkeys([*self.stop_ids, *stop_ids]))
        return other

    def encode(self, text: str) -> tuple[list[int], list[int]]:
        """Ids of a marked text and, for each id, the offset in the unmarked text where it starts."""
        regions = self.marker.regions(text)
        if len(regions) == 1 and not regions[0][1]:
            return self._encode_live(regions[0][0])
        ids: list[int] = []
        starts: list[int] = []
        done = 0
        for region, plain in regions:
            some, where = self._encode_plain(region, inside=done > 0) if plain else self._encode_live(region)
            ids += some
            starts += [done + offset for offset in where]
            done += len(region)
        return ids, starts

    def _encode_live(self, text: str) -> tuple[list[int], list[int]]:
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        if self._normalises_controls:
            self._check_controls(text, encoding.ids)
        return encoding.ids, [start for start, _ in encoding.offsets]

    @cached_property
    def _normalises_controls(self) -> bool:
        """True when text that is no control token may become a special one, because both are compared normalised."""
        added = self._tokenizer.get_added_tokens_decoder().values()
        return self._tokenizer.normalizer is not None and any(token.special and token.normalized for token in added)

    def _check_controls(self, text: str, ids: Sequence[int]) -> None:
        special = {self._control_ids[number] for number in self.structural}
        wanted = Counter(found[0] for found in self.marker.written(text) if found[0] in special)
        extra = Counter(self._control_ids[number] for number in ids if number in self.structural) - wanted
        if extra:
            raise TokenError(
                "expected text that spells no special token, but this vocabulary's normalizer makes "
                f"{next(iter(extra))!r} of something in it; the message cannot be used with this tokenizer."
            )

    def _encode_plain(self, text: str, *, inside: bool) -> tuple[list[int], list[int]]:
        tokenizer = self._plain_inside if inside else self._plain
        encoding = tokenizer.encode(text, add_special_tokens=False)
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

    @cached_property
    def _plain_inside(self) -> Tokenizer:
        """`_plain` for text that does not begin the prompt: what is written only before a first word is not written."""
        state = self._plain.pre_tokenizer.__getstate__() if self._plain.pre_tokenizer is not None else b""
        if _BEFORE_FIRST not in state:
            return self._plain
        plain = Tokenizer(self._tokenizer.model)
        if self._tokenizer.normalizer is not None:
            plain.normalizer = self._tokenizer.normalizer
        inside = copy.deepcopy(self._plain.pre_tokenizer)
        inside.__setstate__(state.replace(_BEFORE_FIRST, _BEFORE_NONE))
        plain.pre_tokenizer = inside
        return plain

    def decode(self, ids: Sequence[int], *, at_start: bool = False) -> str:
        """Text that the ids stand for after other text, control tokens included; bytes that are no UTF-8 become U+FFFD.

        So does every id that has no token: a model's embedding may have more rows than the vocabulary has tokens.
        at_start: nothing comes before the ids. Vocabularies of the SentencePiece kind drop one leading space there.
        """
        if ids and max(ids) >= self._contiguous and not all(map(self._is_named, ids)):
            return self._decode_around_unnamed(ids, at_start=at_start)
        context = None if at_start else self._context
        if context is None:
            return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))
        number, before = context
        text = str(self._tokenizer.decode([number, *ids], skip_special_tokens=False))
        return text[len(before) :] if text.startswith(before) else text

    def _decode_around_unnamed(self, ids: Sequence[int], *, at_start: bool) -> str:
        parts: list[str] = []
        for named, run in groupby(ids, self._is_named):
            some = list(run)
            parts.append(self.decode(some, at_start=at_start and not parts) if named else _UNREADABLE * len(some))
        return "".join(parts)

    def _is_named(self, number: int) -> bool:
        """True when the id has a token."""
        if number < self._contiguous or number in self._control_ids:
            return True
        return number < 2**32 and self._tokenizer.id_to_token(number) is not None

    @cached_property
    def _contiguous(self) -> int:
        """Ids below this number are the model's own, without holes."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=False))

    @cached_property
    def _context(self) -> tuple[int, str] | None:
        """A token and its text to decode after, where the decoder treats the first token otherwise than the rest."""
        decoder = self._tokenizer.decoder
        if decoder is None or isinstance(decoder, decoders.ByteLevel):
            return None
        numbers = sorted(self._control_ids) or range(self.size)
        texts = ((number, self.decode([number], at_start=True)) for number in numbers)
        return next(((number, text) for number, text in texts if text.strip() and "\ufffd" not in text), None)

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
        """A text that identifies the vocabulary: its control tokens, stops, and how it splits a varied text."""
        parts = [self.size, sorted(self.controls.items()), sorted(self.structural), self.special_tokens, self.stop_ids]
        probe = f"{_PROBE}{min(self.controls, default='')}{_PROBE}"
        return json.dumps([*parts, self._encode_live(probe)[0]], sort_keys=True)


_UNREADABLE = "\ufffd"
_BEFORE_FIRST, _BEFORE_NONE = b'"prepend_scheme":"first"', b'"prepend_scheme":"never"'
"""How the states of pre-tokenizers say whether a space is put before a text's first word."""

_PROBE = (
    "The quick brown fox doesn't jump over 13 lazy dogs; naïve Ärger, señor, москва, 東京都, 안녕하세요, नमस्ते 🤖\n\n"
    "    def f(x: int) -> list[str]:\n\t\treturn {'key': [x ** 2, 3.14159e-10, 0xFF]}  # http://example.org/?q=a&b=c\r\n"
)
"""Vocabularies that split this alike are taken for the same; it costs a fraction of a millisecond."""
