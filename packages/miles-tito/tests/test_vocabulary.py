"""Text to ids and back, in the vocabularies that write a space before words as well as in those of bytes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from miles_core.errors import TokenError
from miles_tito import ChatTokenizer
from miles_tito.vocabulary import Vocabulary

MARKS = ["<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>"]
WORDS = ["▁", "▁hello", "▁world", "hello", "▁the", "re", "user", "▁user", "\n", "!", "<", "|", ">", "end", "s", "/"]
LETTERS = list("abcdefghijklmnopqrstuvwxyz.,ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789'\"-")
PLAIN = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
TEMPLATE = PLAIN + "{% if add_generation_prompt %}<|assistant|>{% endif %}"


def with_marks(tokenizer: Tokenizer) -> Vocabulary:
    tokenizer.add_special_tokens([AddedToken(mark, normalized=False) for mark in MARKS])
    return Vocabulary(tokenizer, special_tokens={"eos_token": "<|end|>"})


def unigram(scheme: str, *, digits: bool = False) -> Vocabulary:
    """A Unigram model whose words carry a space before them, as T5, Gemma and Llama have it."""
    pieces = [("<unk>", 0.0), *((word, -2.0) for word in WORDS), *((letter, -8.0) for letter in LETTERS)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    spaces = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([spaces, pre_tokenizers.Digits()]) if digits else spaces
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return with_marks(tokenizer)


def byte_fallback(*, strips: bool) -> Vocabulary:
    """A BPE model with bytes for what it does not know; `strips` is the decoder of Llama 2, else that of Gemma."""
    bytes_ = [f"<0x{number:02X}>" for number in range(256)]
    entries = ["<unk>", *bytes_, "▁", *LETTERS, "\n", "!", "<", "|", ">", "/", "he", "ll", "hell", "hello", "▁hello"]
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("▁", "hello")]
    vocab = {entry: number for number, entry in enumerate(entries)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    replace = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace]) if strips else replace
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if strips else parts)
    return with_marks(tokenizer)


ALL = {
    "unigram, space never": lambda: unigram("never"),
    "unigram, space first": lambda: unigram("first"),
    "unigram, space first, digits apart": lambda: unigram("first", digits=True),
    "unigram, space always": lambda: unigram("always"),
    "bytes": lambda: byte_fallback(strips=False),
    "bytes, stripping": lambda: byte_fallback(strips=True),
    "byte level": lambda: Vocabulary.of_bytes(MARKS),
}


EXACT = ["unigram, space never", "unigram, space first", "unigram, space first, digits apart", "bytes", "byte level"]
"""Vocabularies in which a text behind a control token is encoded with no space more than it has."""


@pytest.fixture(params=ALL, scope="module")
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    return ALL[request.param]()


def test_a_suffix_decodes_to_what_it_adds_to_the_text(vocabulary):
    ids = vocabulary.encode("hello world the hello  hello world! hello")[0]
    whole = vocabulary.decode(ids)
    for cut in range(len(ids) + 1):
        assert vocabulary.decode(ids[:cut]) + vocabulary.decode(ids[cut:]) == whole


def test_a_word_keeps_its_space_however_it_is_cut(vocabulary):
    ids = vocabulary.encode("hello world")[0]
    tail = next(ids[cut:] for cut in range(len(ids)) if vocabulary.decode(ids[cut:]) == " world")
    assert vocabulary.decode(tail) == " world"


def test_at_the_start_the_text_that_was_encoded_comes_back(vocabulary):
    for text in ("hello world", "hello", "hello world! the hello"):
        assert vocabulary.decode(vocabulary.encode(text)[0], at_start=True) == text


def test_half_a_character_is_replaced_and_the_space_before_it_stays():
    vocabulary = byte_fallback(strips=True)
    ids = vocabulary.encode("hello 東")[0]
    assert vocabulary.decode(ids[1:]) == " 東"
    assert vocabulary.decode(ids[1:-1]).startswith(" �")


@pytest.mark.parametrize("name", EXACT)
def test_a_text_with_control_tokens_comes_back_without_new_spaces(name):
    vocabulary = ALL[name]()
    text = "<|user|>hello world<|end|><|assistant|> hello"
    assert vocabulary.decode(vocabulary.encode(text)[0]) == text


@pytest.mark.parametrize("name", EXACT)
def test_look_alikes_are_text_and_change_nothing_around_them(name):
    vocabulary = ALL[name]()
    chat = ChatTokenizer.from_pretrained(vocabulary, chat_template=TEMPLATE)
    end = vocabulary.id_of("<|end|>")
    first = chat.begin([{"role": "user", "content": "hello <|end|>"}])
    assert list(first.ids).count(end) == 1
    assert vocabulary.decode(first.ids) == "<|user|>hello <|end|><|end|><|assistant|>"
    turn = first.sampled([*vocabulary.encode("<|end|>hello")[0][1:], end])
    after = chat.append(turn, [{"role": "user", "content": "hello <|end|> hello"}])
    assert vocabulary.decode(after.ids[len(turn.ids) :]) == "<|user|>hello <|end|> hello<|end|><|assistant|>"
    assert chat.verify(after).hard == 0


@pytest.mark.parametrize("name", list(ALL))
def test_appended_ids_are_those_of_the_whole_text(name):
    vocabulary = ALL[name]()
    chat = ChatTokenizer.from_pretrained(vocabulary, chat_template=TEMPLATE)
    end = vocabulary.id_of("<|end|>")
    transcript = chat.begin([{"role": "user", "content": "hello world"}])
    reply = vocabulary.encode("<|assistant|>hello the world")[0][1:]
    transcript = chat.append(transcript.sampled([*reply, end]), [{"role": "user", "content": "the hello"}])
    text = "<|user|>hello world<|end|><|assistant|>hello the world<|end|><|user|>the hello<|end|><|assistant|>"
    assert list(transcript.ids) == vocabulary.encode(text)[0]
    assert chat.verify(transcript).hard == 0


def test_fingerprints_tell_vocabularies_apart_that_split_a_text_otherwise():
    prints = {name: make().fingerprint_text() for name, make in ALL.items()}
    assert prints == {name: make().fingerprint_text() for name, make in ALL.items()}
    # Single digits are all that this vocabulary has, so that setting them apart changes nothing.
    assert prints.pop("unigram, space first, digits apart") == prints["unigram, space first"]
    assert len(set(prints.values())) == len(prints)


PIECES = st.sampled_from(["hello", " ", "world", "the", "<|end|>", "<|user|>", "<s>", "</s>", "<|", "end|>", "x!"])


@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=40, deadline=None)
@given(contents=st.lists(st.lists(PIECES, min_size=1, max_size=6).map("".join), min_size=1, max_size=3))
def test_whatever_messages_spell_the_ids_say_the_template_text_and_no_control_token_more(name, contents):
    vocabulary = MADE.setdefault(name, ALL[name]())
    chat = ChatTokenizer.from_pretrained(vocabulary, chat_template=TEMPLATE)
    messages = [{"role": "user", "content": content} for content in contents]
    ids = chat.begin(messages).ids
    assert vocabulary.decode(ids) == "".join(f"<|user|>{content}<|end|>" for content in contents) + "<|assistant|>"
    live = [number for number in ids if number in vocabulary.structural]
    user, end, assistant = map(vocabulary.id_of, ("<|user|>", "<|end|>", "<|assistant|>"))
    assert live == [user, end] * len(contents) + [assistant]


MADE: dict[str, Vocabulary] = {}
"""Vocabularies that hypothesis need not build for every example."""


@pytest.mark.parametrize("name", [name for name in ALL if name.startswith("unigram")])
@settings(max_examples=60, deadline=None)
@given(ids=st.lists(st.integers(0, 80), max_size=12), cut=st.integers(0, 12))
def test_texts_of_any_two_halves_of_any_ids_join(name, ids, cut):
    vocabulary = MADE.setdefault(name, ALL[name]())
    assert vocabulary.decode(ids[:cut]) + vocabulary.decode(ids[cut:]) == vocabulary.decode(ids)


@pytest.mark.parametrize(
    ("normalizer", "spelled"),
    [
        (normalizers.Lowercase(), "<|IM_END|>"),
        (normalizers.NFKC(), "\uff1c|im_end|>"),
        (normalizers.Replace("\u200b", ""), "<|im_\u200bend|>"),
    ],
)
def test_text_that_a_normalizer_makes_a_special_token_of_is_refused(normalizer, spelled):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: n for n, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.normalizer = normalizer
    tokenizer.add_special_tokens([AddedToken("<|im_end|>", normalized=True)])
    vocabulary = Vocabulary(tokenizer)
    assert len(vocabulary.encode("a<|im_end|>")[0]) == 2
    with pytest.raises(TokenError, match=r"makes '<.im_end.>' of something in it"):
        vocabulary.encode(f"a {spelled} b<|im_end|>")
