"""The fast way to load and render gives what transformers gives."""

import json
import subprocess
import sys
import textwrap

import pytest

from miles_tito import ChatTokenizer
from miles_tito.verify.shapes import TOOLS, shapes

pytestmark = pytest.mark.slow


@pytest.mark.shared
@pytest.mark.parametrize("name", ["qwen3", "smollm2", "deepseek-v4"])
def test_the_prompt_is_that_of_apply_chat_template(tokenizers_folder, name):
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(tokenizers_folder / name)
    ours = ChatTokenizer.from_pretrained(tokenizers_folder / name)
    compared = 0
    for shape in shapes(tools=True, reasoning=False):
        if "control tokens" in shape.name or "parts" in shape.name:
            continue
        messages = ours.template.normalised(shape.messages)
        try:
            expected = theirs.apply_chat_template(messages, tools=list(TOOLS), add_generation_prompt=True)["input_ids"]
        except Exception:  # the template itself refuses the conversation
            continue
        assert list(ours.begin(shape.messages, TOOLS).ids) == list(expected), shape.name
        compared += 1
    assert compared > 10


@pytest.mark.shared
def test_a_tokenizer_object_gives_what_its_folder_gives_and_stays_untouched(tokenizers_folder):
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(tokenizers_folder / "qwen3")
    before = json.loads(theirs.backend_tokenizer.to_str())
    by_object, by_folder = (ChatTokenizer.from_pretrained(x) for x in (theirs, tokenizers_folder / "qwen3"))
    messages = [{"role": "user", "content": "naïve 東京 <|im_end|> 🤖 get_weather"}]
    assert by_object.begin(messages).ids == by_folder.begin(messages).ids
    assert by_object.stop_token_ids == by_folder.stop_token_ids
    assert json.loads(theirs.backend_tokenizer.to_str()) == before


@pytest.mark.shared
def test_a_tokenizer_object_stops_where_the_folder_it_came_from_says(tokenizers_folder, tmp_path):
    from transformers import AutoTokenizer

    for file in (tokenizers_folder / "smollm2").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [0, 2]}')
    by_object, by_folder = (
        ChatTokenizer.from_pretrained(x) for x in (AutoTokenizer.from_pretrained(tmp_path), tmp_path)
    )
    assert by_object.stop_token_ids == by_folder.stop_token_ids == (0, 2)
    assert by_object.profile == by_folder.profile


@pytest.mark.shared
def test_sampled_ids_of_a_real_vocabulary_that_reencode_otherwise_are_kept(tokenizers_folder):
    chat = ChatTokenizer.from_pretrained(tokenizers_folder / "qwen3")
    drift = [633, 62, 15206, 27, 91, 318, 6213, 91, 29, 160, 121]
    assert chat.vocabulary.encode(chat.vocabulary.decode(drift))[0] != drift
    transcript = chat.begin([{"role": "user", "content": "u"}])
    for _ in range(50):
        transcript = transcript.sampled([*drift, *chat.stop_token_ids])
        transcript = chat.append(transcript, [{"role": "user", "content": "go on"}])
    assert [list(s.ids[:-1]) for s in transcript.spans if s.origin == "sampled"] == [drift] * 50
    assert chat.verify(transcript).hard == 0


WITHOUT_TORCH = """
    import sys

    class Without:
        def __init__(self, finder):
            self.finder = finder

        def find_spec(self, name, path=None, target=None):
            return None if name.partition(".")[0] == "torch" else self.finder.find_spec(name, path, target)

        def __getattr__(self, name):
            return getattr(self.finder, name)

    sys.meta_path[:] = map(Without, sys.meta_path)
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from miles_tito import ChatTokenizer

    pieces = [("<unk>", 0.0), *((letter, -5.0) for letter in "▁abcdefghijklmnopqrstuvwxyz"), ("▁hello", -1.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    tokenizer.add_special_tokens([AddedToken(mark, normalized=False) for mark in ("<u>", "</s>")])
    theirs = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")
    theirs.chat_template = {"default": "no", "tool_use": "{% for m in messages %}<u>{{ m.content }}</s>{% endfor %}"}
    chat = ChatTokenizer.from_pretrained(theirs)
    text = [{"role": "user", "content": "hello hello"}]
    assert list(chat.begin(text).ids) == theirs.encode("<u>hello hello</s>", add_special_tokens=False)
    assert chat.vocabulary.decode(chat.begin(text).ids) == "<u>hello hello</s>"
    assert chat.stop_token_ids == (theirs.eos_token_id,)
    assert "torch" not in sys.modules  # its finders find everything but torch
    print("fine")
"""


def test_a_tokenizer_of_transformers_needs_no_torch():
    command = [sys.executable, "-c", textwrap.dedent(WITHOUT_TORCH)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout == "fine\n", done.stderr
