"""A vocabulary in tiktoken's form gives the ids that its ranks and its pattern mean."""

import base64
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_core.errors import TokenError
from miles_tito import ChatTokenizer
from miles_tito.loading import read_vocabulary
from miles_tito.tiktoken_files import _alphabet, read_tiktoken
from miles_tito.vocabulary import Vocabulary

MERGED = ["he", "ll", "hell", "hello", " hello", "lo", " w", "or", " wor", "ld", " world", "東".encode(), "'s", "12"]
RANKS = {bytes([byte]): byte for byte in range(256)}
RANKS |= {token if isinstance(token, bytes) else token.encode(): 256 + n for n, token in enumerate(MERGED)}
SPECIALS = {300: ("[BOS]", True), 301: ("<|im_end|>", True), 305: ("<think>", False)}
PATTERN = [
    r"""'s|[^\r\n\p{L}\p{N}]?[\p{L}&&[^\p{Han}]]+""",
    r"""[\p{Han}]+""",
    r"""\p{N}{1,2}""",
    r"""\s+|[^\s\p{L}\p{N}]+""",
]
CODE = 'class Tok:\n    """Doc."""\n    size: int = 3\n    pat_str = "|".join([\n        {parts}\n    ])\n'


def write(folder: Path, code: str) -> None:
    lines = [base64.b64encode(token) + b" " + str(rank).encode() for token, rank in RANKS.items()]
    (folder / "tiktoken.model").write_bytes(b"\n".join(lines) + b"\n")
    (folder / "tok_kimi.py").write_text(code)
    entries = ", ".join(
        f'"{number}": {{"content": "{text}", "special": {str(special).lower()}, "normalized": false}}'
        for number, (text, special) in SPECIALS.items()
    )
    (folder / "tokenizer_config.json").write_text(
        f'{{"added_tokens_decoder": {{{entries}}}, "bos_token": "[BOS]", "eos_token": "<|im_end|>",'
        ' "auto_map": {"AutoTokenizer": ["tok_kimi.Tok", null]}}'
    )


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory) -> Vocabulary:
    folder = tmp_path_factory.mktemp("kimi")
    write(folder, CODE.replace("{parts}", ",\n        ".join(f'r"""{part}"""' for part in PATTERN)))
    return read_vocabulary(folder)


def by_ranks(word: bytes) -> list[int]:
    """The merge of lowest rank first, leftmost first, until none is left: what tiktoken does with one word."""
    if word in RANKS:
        return [RANKS[word]]
    parts = [bytes([byte]) for byte in word]
    while True:
        pairs = [(RANKS[parts[n] + parts[n + 1]], n) for n in range(len(parts) - 1) if parts[n] + parts[n + 1] in RANKS]
        if not pairs:
            return [RANKS[part] for part in parts]
        _, place = min(pairs)
        parts[place : place + 2] = [parts[place] + parts[place + 1]]


LATIN = re.compile(r"'s|[^\r\na-z0-9]?[a-z]+|[0-9]{1,2}|\s+|[^\sa-z0-9]+")
"""The same pattern for texts of lower-case Latin letters, digits and signs."""


@given(st.text(alphabet="helo wrd's12!.\n", max_size=40))
def test_ids_are_those_of_the_ranks_word_by_word(vocabulary, text):
    expected = [number for word in LATIN.findall(text) for number in by_ranks(word.encode())]
    assert vocabulary.encode(text)[0] == expected
    assert vocabulary.decode(expected) == text


def test_ids_worked_by_hand(vocabulary):
    assert vocabulary.encode("hello world")[0] == [259, 266]
    assert vocabulary.encode("hell's 12")[0] == [258, 268, 32, 269]
    assert vocabulary.encode("東")[0] == [267]  # a whole word needs no merges; here there are none that make it
    assert vocabulary.encode("東東")[0] == [*"東東".encode()]
    assert vocabulary.encode("[BOS]hello<|im_end|><think>")[0] == [300, 259, 301, 305]


def test_tokens_lie_where_the_configuration_declares_them(vocabulary):
    assert vocabulary.structural == {300, 301}
    assert vocabulary.stop_ids == (301,)
    assert vocabulary.special_tokens == {"bos_token": "[BOS]", "eos_token": "<|im_end|>"}


def test_look_alikes_are_text_in_it(vocabulary):
    template = "{% for m in messages %}[BOS]{{ m.content }}<|im_end|>{% endfor %}"
    chat = ChatTokenizer.from_pretrained(vocabulary, chat_template=template)
    ids = chat.begin([{"role": "user", "content": "hello<|im_end|>"}]).ids
    assert (ids[0], ids[-1], ids.count(301)) == (300, 301, 1)
    assert vocabulary.decode(ids) == "[BOS]hello<|im_end|><|im_end|>"


@pytest.mark.parametrize(
    "code",
    [
        "import unicodedata\n" + CODE.replace("{parts}", 'r"x"'),
        "class Tok:\n    pat_str = build()\n",
        'class Tok:\n    pat_str = "|".join(["a", other])\n',
        "class Tok\n",
    ],
)
def test_code_that_says_more_than_a_pattern_is_not_guessed_at(tmp_path, code):
    write(tmp_path, code)
    with pytest.raises(TokenError, match="Python code of its own"):
        read_vocabulary(tmp_path)


def test_the_code_is_read_and_never_run(tmp_path):
    write(tmp_path, 'raise SystemExit\npat_str: str = r"\\w+|\\W+"\n')
    assert read_vocabulary(tmp_path).encode("hello")[0] == [259]


TEXTS = [
    "The quick brown fox doesn't jump over 1234567 dogs; naïve Ärger, señor, москва, 東京都 안녕하세요 नमस्ते 🤖\n\n",
    "    def f(x: int) -> list[str]:\n\t\treturn {'key': [x ** 2, 3.14159e-10]}  # http://example.org/?q=a&b=c\r\n",
    "ＡＢＣ ﬁ ½ \u200b zero-width,\u00a0no-break; ~~~~~~ ==== ........ \\\\\\\\ !?!?",
]


@pytest.mark.slow
@pytest.mark.shared
def test_a_real_vocabulary_in_this_form_gives_its_own_ids(tokenizers_folder, tmp_path):
    """Qwen3's ranks are its ids, so its entries in order and its pattern are all that tiktoken's form would hold."""
    real = json.loads((tokenizers_folder / "qwen3" / "tokenizer.json").read_text())
    characters = {character: byte for byte, character in _alphabet().items()}
    tokens = [(bytes(map(characters.__getitem__, text)), rank) for text, rank in real["model"]["vocab"].items()]
    lines = [base64.b64encode(token) + b" " + str(rank).encode() for token, rank in tokens]
    (tmp_path / "tiktoken.model").write_bytes(b"\n".join(lines))
    pattern = real["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
    ours = Vocabulary(read_tiktoken(tmp_path / "tiktoken.model", pattern, []))
    theirs = read_vocabulary(tokenizers_folder / "qwen3")
    for text in TEXTS:
        assert ours.encode(text)[0] == theirs.encode(text)[0]


def test_a_broken_line_is_named(tmp_path):
    write(tmp_path, 'pat_str = "x"\n')
    (tmp_path / "tiktoken.model").write_bytes(b"aGU= 0\nnonsense\n")
    with pytest.raises(TokenError, match=r"line 2 of .*tiktoken.model, found b'nonsense'"):
        read_vocabulary(tmp_path)
