"""Ids to text piece by piece: half characters wait, broken ones do not, and no cut changes the text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from miles_tito.parsers.pieces import TextPieces
from miles_tito.verify.vocabulary import default_vocabulary


def of_bytes(ids):
    return bytes(ids).decode("utf-8", "replace")


def metaspace_with_byte_fallback():
    """Pieces as sentencepiece makes them: words with a leading space, and single bytes."""
    vocab = {"<unk>": 0, "▁a": 1, "b": 2, "▁": 3} | {f"<0x{n:02X}>": n + 4 for n in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False)


SENTENCEPIECE = metaspace_with_byte_fallback()


def whole(decode, ids):
    pieces = TextPieces(decode)
    return pieces.feed(ids) + pieces.finish()


def cut(decode, ids, sizes):
    pieces, text, rest = TextPieces(decode), "", list(ids)
    for size in sizes:
        text += pieces.feed(rest[:size])
        rest = rest[size:]
    return text + pieces.feed(rest) + pieces.finish()


def test_half_a_character_waits():
    pieces = TextPieces(of_bytes)
    assert [pieces.feed([number]) for number in "é€😀".encode()] == ["", "é", "", "", "€", "", "", "", "😀"]
    assert pieces.finish() == ""


def test_half_a_character_at_the_end_is_a_replacement():
    assert whole(of_bytes, "é".encode()[:1]) == "\ufffd"


def test_a_real_replacement_character_is_kept():
    assert whole(of_bytes, "a\ufffdb".encode()) == "a\ufffdb"


def test_whole_characters_of_bytes_one_after_another_are_decoded():
    ids = [number + 4 for number in "€€東".encode()]
    pieces = TextPieces(SENTENCEPIECE)
    assert "".join(pieces.feed([number]) for number in ids) == "€€東"


def test_a_leading_space_is_neither_lost_nor_added():
    ids = [1, 2, 1, 3, 2]
    assert SENTENCEPIECE(ids) == "ab a b"
    pieces = TextPieces(SENTENCEPIECE)
    assert "".join(pieces.feed([number]) for number in ids) == "ab a b"


@given(text=st.text(max_size=12), sizes=st.lists(st.integers(0, 5), max_size=10))
@settings(max_examples=100, deadline=None)
def test_text_comes_back_however_it_is_cut(text, sizes):
    assert cut(of_bytes, text.encode(), sizes) == text


@pytest.mark.parametrize("decode", [of_bytes, SENTENCEPIECE], ids=["bytes", "sentencepiece"])
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_no_cut_changes_what_broken_bytes_become(decode, data):
    alphabet = [0xE2, 0x82, 0xAC, 0xC3, 0xA9, 0x80, 0xF0, 0x9F, 0x41, 0x20]
    ids = data.draw(st.lists(st.sampled_from(alphabet), max_size=24))
    if decode is SENTENCEPIECE:
        ids = [{0x41: 1, 0x20: 2}.get(number, number + 4) for number in ids]
    sizes = data.draw(st.lists(st.integers(0, 6), max_size=12))
    assert cut(decode, ids, sizes) == whole(decode, ids)


def test_broken_bytes_cost_a_bounded_number_of_decoded_ids_each():
    decoded = 0

    def counting(ids):
        nonlocal decoded
        decoded += len(ids)
        return of_bytes(ids)

    pieces = TextPieces(counting)
    text = "".join(pieces.feed([0x80]) for _ in range(2000)) + pieces.feed([0x41]) + pieces.finish()
    assert text == "\ufffd" * 2000 + "A"
    assert decoded < 40 * 2000


@pytest.mark.parametrize("name", ["qwen3", "smollm2"])
def test_a_real_vocabulary_gives_its_text_id_by_id(tokenizers_folder, name):
    from miles_tito.loading import load

    vocabulary = load(tokenizers_folder / name).vocabulary
    text = "Grüße, 東京 🤖👩‍🔬 \u0301\n\tx <think>"
    ids = vocabulary.encode(text)[0]
    pieces = TextPieces(vocabulary.decode)
    assert "".join(pieces.feed([number]) for number in ids) + pieces.finish() == vocabulary.decode(ids)


def test_the_default_vocabulary_decodes_bytes_in_any_order():
    from miles_tito.render import ChatTemplate

    vocabulary = default_vocabulary(ChatTemplate("<|im_end|>"))
    ids = [*vocabulary.encode("é")[0], vocabulary.id_of("<|im_end|>"), *vocabulary.encode("€")[0]]
    assert cut(vocabulary.decode, ids, [1, 1, 1, 1, 1]) == "é<|im_end|>€"
