"""From the files of a model, or a tokenizer object, to a vocabulary, its stops and its chat template."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from miles_core.errors import TokenError
from miles_tito import ChatTokenizer
from miles_tito.loading import load, read_vocabulary
from miles_tito.template_files import choose_template, read_templates
from miles_tito.vocabulary import Vocabulary

MARKS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
ONE, TWO = "one {{ messages }}", "two {{ messages }}"


@pytest.fixture
def folder(tmp_path: Path, template_file) -> Path:
    """A tokenizer of bytes with a ChatML template and no configuration."""
    Vocabulary.of_bytes(MARKS).save(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(template_file("chatml").read_text())
    return tmp_path


def write(folder: Path, name: str, value: object) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))


@pytest.mark.parametrize(
    ("files", "templates"),
    [
        ({}, {}),
        ({"tokenizer_config.json": {"chat_template": ONE}}, {"default": ONE}),
        (
            {
                "tokenizer_config.json": {
                    "chat_template": [{"name": "default", "template": ONE}, {"name": "rag", "template": TWO}]
                }
            },
            {"default": ONE, "rag": TWO},
        ),
        ({"chat_template.json": {"chat_template": ONE}}, {"default": ONE}),
        ({"processor_config.json": {"chat_template": {"default": ONE, "rag": TWO}}}, {"default": ONE, "rag": TWO}),
        ({"tokenizer_config.json": {"chat_template": TWO}, "chat_template.jinja": ONE}, {"default": ONE}),
        (
            {"chat_template.jinja": ONE, "additional_chat_templates/tool_use.jinja": TWO},
            {"default": ONE, "tool_use": TWO},
        ),
        ({"tokenizer_config.json": {"chat_template": None}}, {}),
    ],
)
def test_templates_are_found_wherever_they_lie(tmp_path, files, templates):
    for name, value in files.items():
        write(tmp_path, name, value)
    assert read_templates(tmp_path) == templates


def test_a_template_is_chosen_by_name_by_file_or_given_as_text(tmp_path):
    several = {"default": ONE, "rag": TWO}
    write(tmp_path, "mine.jinja", "mine {{ messages }}")
    assert choose_template(several, None) == ONE
    assert choose_template({"tool_use": TWO, "default": ONE}, None) == TWO
    assert choose_template(several, "rag") == TWO
    assert choose_template(several, tmp_path / "mine.jinja") == "mine {{ messages }}"
    assert choose_template(several, str(tmp_path / "mine.jinja")) == "mine {{ messages }}"
    assert choose_template(several, "{{ messages }}") == "{{ messages }}"
    assert choose_template({"only": ONE}, None) == ONE


def test_a_template_that_nobody_knows_is_refused_with_the_names(tmp_path):
    with pytest.raises(TokenError, match="'default', 'rag', a template's file or its text"):
        choose_template({"default": ONE, "rag": TWO}, "rga")
    with pytest.raises(TokenError, match="found 'a', 'b'; pass one of the names"):
        choose_template({"a": ONE, "b": TWO}, None)
    with pytest.raises(TokenError, match="found none; pass chat_template"):
        choose_template({}, None)
    (tmp_path / "bad.jinja").write_bytes(b"ab\xff")
    with pytest.raises(TokenError, match="found byte 2 that is not"):
        choose_template({}, tmp_path / "bad.jinja")


def test_the_template_that_is_named_is_used(folder):
    write(folder, "additional_chat_templates/shout.jinja", "SHOUT{{ messages[0].content }}<|im_end|>")
    chat = ChatTokenizer.from_pretrained(folder, chat_template="shout")
    assert chat.vocabulary.decode(chat.begin([{"role": "user", "content": "hi"}]).ids) == "SHOUThi<|im_end|>"
    assert ChatTokenizer.from_pretrained(folder).template.source == (folder / "chat_template.jinja").read_text()


@pytest.mark.parametrize(
    ("files", "stops"),
    [
        ({}, []),
        ({"tokenizer_config.json": {"eos_token": "<|im_end|>"}}, ["<|im_end|>"]),
        ({"special_tokens_map.json": {"eos_token": {"content": "<|im_end|>"}}}, ["<|im_end|>"]),
        ({"generation_config.json": {"eos_token_id": 258}}, ["<|endoftext|>"]),
        ({"generation_config.json": {"eos_token_id": [258, 257]}}, ["<|endoftext|>", "<|im_end|>"]),
        ({"config.json": {"eos_token_id": 257}}, ["<|im_end|>"]),
        ({"config.json": {"text_config": {"eos_token_id": [257]}, "eos_token_id": None}}, ["<|im_end|>"]),
        ({"config.json": {"thinker_config": {"text_config": {"eos_token_id": 257}}}}, ["<|im_end|>"]),
        (
            {
                "generation_config.json": {"eos_token_id": [258]},
                "config.json": {"eos_token_id": 257},
                "tokenizer_config.json": {"eos_token": "<|endoftext|>"},
            },
            ["<|endoftext|>", "<|im_end|>"],
        ),
    ],
)
def test_every_end_of_sequence_id_of_the_files_stops(folder, files, stops):
    for name, value in files.items():
        write(folder, name, value)
    vocabulary = read_vocabulary(folder)
    assert vocabulary.stop_ids == tuple(vocabulary.id_of(stop) for stop in stops)


def test_an_end_of_sequence_that_is_no_id_is_refused(folder):
    write(folder, "generation_config.json", {"eos_token_id": "<|im_end|>"})
    with pytest.raises(TokenError, match="expected ids as eos_token_id"):
        read_vocabulary(folder)


def test_special_tokens_are_texts_or_objects_and_templates_see_them(folder):
    write(
        folder,
        "tokenizer_config.json",
        {
            "bos_token": {"content": "<|im_start|>", "lstrip": False},
            "eos_token": "<|im_end|>",
            "add_bos_token": True,
            "unk_token": None,
            "extra_special_tokens": {"image_token": "<|endoftext|>"},
        },
    )
    names = read_vocabulary(folder).special_tokens
    assert names == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "image_token": "<|endoftext|>"}


def test_tokens_that_only_the_configuration_declares_are_added_at_their_ids(folder):
    entry = {"content": "<|new|>", "special": True, "normalized": False}
    write(folder, "tokenizer_config.json", {"added_tokens_decoder": {"259": entry}})
    write(folder, "added_tokens.json", {"<think>": 260})
    vocabulary = read_vocabulary(folder)
    assert vocabulary.encode("<|new|><think>")[0] == [259, 260]
    assert vocabulary.structural == {256, 257, 258, 259}


def test_a_declared_id_that_the_tokenizer_does_not_give_is_refused(folder):
    write(folder, "tokenizer_config.json", {"added_tokens_decoder": {"300": {"content": "<|new|>"}}})
    with pytest.raises(TokenError, match=r"token 300, as .* gives it 259; the files do not belong together"):
        read_vocabulary(folder)


def test_an_end_of_sequence_that_is_an_ordinary_entry_becomes_a_control_token(folder):
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["</s>"] = 259
    write(folder, "tokenizer.json", tokenizer)
    write(folder, "tokenizer_config.json", {"eos_token": "</s>"})
    vocabulary = read_vocabulary(folder)
    assert vocabulary.stop_ids == (259,)
    assert vocabulary.encode("a</s>")[0][-1] == 259


def test_truncation_and_padding_of_the_file_do_nothing(folder):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(8, direction="left")
    tokenizer.enable_padding(length=4000)
    tokenizer.save(str(folder / "tokenizer.json"))
    chat = ChatTokenizer.from_pretrained(folder)
    text = "<|im_start|>user\n" + "x" * 1000 + "<|im_end|>\n<|im_start|>assistant\n"
    assert chat.vocabulary.decode(chat.begin([{"role": "user", "content": "x" * 1000}]).ids) == text


def test_a_folder_a_tokenizer_and_a_vocabulary_give_the_same_ids(folder, template_file):
    source = template_file("chatml").read_text()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(5)
    loaded = [load(folder), load(str(folder)), load(tokenizer), load(Vocabulary.of_bytes(MARKS))]
    messages = [{"role": "user", "content": "naïve <|im_end|>"}]
    chats = [ChatTokenizer.from_pretrained(one.vocabulary, chat_template=source) for one in loaded]
    assert len({chat.begin(messages).ids for chat in chats}) == 1
    assert len({chat.profile.fingerprint for chat in chats}) == 1
    assert tokenizer.truncation["max_length"] == 5


def test_an_object_that_is_no_tokenizer_is_refused():
    with pytest.raises(TokenError, match=r"expected a fast tokenizer .* found dict"):
        load({})


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("tokenizer.json", "{}", "expected a tokenizer in .*download the file again"),
        ("tokenizer_config.json", "{", "expected JSON in .*tokenizer_config.json"),
        ("generation_config.json", "[", "expected JSON in .*generation_config.json"),
    ],
)
def test_a_broken_file_is_named(folder, name, text, found):
    write(folder, name, text)
    with pytest.raises(TokenError, match=found):
        load(folder)


def test_a_tokenizer_of_python_code_is_refused_with_what_to_do(tmp_path):
    write(tmp_path, "tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["code.Tokenizer", None]}})
    with pytest.raises(TokenError, match=r"Python code of its own; .*save_pretrained"):
        load(tmp_path)


def test_a_folder_without_a_vocabulary_is_refused(tmp_path):
    write(tmp_path, "config.json", {"model_type": "llama"})
    with pytest.raises(TokenError, match="found no vocabulary at all; name the folder of the tokenizer"):
        load(tmp_path)


@pytest.mark.slow
def test_a_folder_that_transformers_cannot_convert_is_refused_with_what_to_do(tmp_path):
    write(tmp_path, "tokenizer.model", "no model")
    write(tmp_path, "config.json", {"model_type": "llama"})
    with pytest.raises(TokenError, match=r"found none, and transformers: .* sentencepiece .*save_pretrained"):
        load(tmp_path)


WITHOUT_TORCH = """
    import sys

    class NoTorch:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == "torch":
                raise ModuleNotFoundError(f"no {name} here", name=name)

    sys.meta_path.insert(0, NoTorch())
    from miles_tito import ChatTokenizer
    chat = ChatTokenizer.from_pretrained(sys.argv[1])
    transcript = chat.begin([{"role": "user", "content": "u"}]).sampled([97, 257])
    transcript = chat.append(transcript, [{"role": "user", "content": "v"}])
    assert chat.verify(transcript).hard == 0
    heavy = {"torch", "transformers", "pydantic", "httpx", "ray"} & {name.partition(".")[0] for name in sys.modules}
    assert not heavy, heavy
    print("fine")
"""


def test_nothing_heavy_is_imported_and_torch_is_not_needed(folder):
    """From importing the package to appending to a transcript."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(WITHOUT_TORCH), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "fine\n", done.stderr
