"""What is derived about a template."""

import pytest

from miles_core.errors import TokenError
from miles_tito import ChatTokenizer, Profile
from miles_tito.render import ChatTemplate
from miles_tito.vocabulary import Vocabulary


def test_stops_are_the_vocabularys_and_the_templates_own(chat_for):
    assert chat_for("chatml").profile.stops == ("<|im_end|>",)
    assert set(chat_for("last_turn_ends_otherwise").profile.stops) == {"<|return|>", "<|end|>"}
    assert set(chat_for("opener_is_stop").profile.stops) == {"<|user|>", "<|system|>", "<|observation|>"}
    chat = chat_for("opener_is_stop")
    assert chat.stop_token_ids == tuple(chat.vocabulary.id_of(stop) for stop in chat.profile.stops)


def test_what_the_generation_prompt_opens_inside_the_turn_is_told_from_the_header(chat_for):
    assert chat_for("strips_reasoning").profile.prefills == ("<think>\n",)
    assert chat_for("opener_is_stop").profile.prefills == ("<think>",)
    assert chat_for("chatml").profile.prefills == ()


def test_the_form_of_arguments_is_derived(chat_for):
    assert chat_for("arguments_as_string").profile.arguments == "string"
    assert chat_for("chatml").profile.arguments == "object"


@pytest.mark.parametrize(
    ("condition", "form"),
    [
        ("true", "empty"),
        ("m.content is none", "null"),
        ("m.content is not defined", "absent"),
        ("not m.content", "empty"),
    ],
)
def test_what_stands_beside_calls_is_derived_and_used(condition, form, encode):
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.tool_calls and "
        + condition
        + " %}{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments|tojson }}{% endfor %}"
        "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    chat = ChatTokenizer.from_pretrained(Vocabulary.of_bytes(["<|im_start|>", "<|im_end|>"]), chat_template=template)
    assert chat.profile.beside_calls == form
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    user, result = {"role": "user", "content": "u"}, {"role": "tool", "tool_call_id": "c", "content": "r"}
    turn = {"role": "assistant", "content": None, "tool_calls": [call]}
    transcript = chat.begin([user, turn, result])
    assert "assistant\nlook{}<|im_end|>" in chat.vocabulary.decode(transcript.ids)
    for _ in range(2):
        transcript = chat.append(transcript.sampled(encode(chat, "look{}<|im_end|>"), message=turn), [result])
        assert chat.verify(transcript).differences == ()
    transcript = chat.begin([user])
    for _ in range(3):
        transcript = chat.append(transcript.sampled(encode(chat, "look{}<|im_end|>"), message=turn), [result])
        assert chat.verify(transcript).differences == ()
    assert chat.profile.proofs["1>tool"] == "bounded"


def test_a_profile_survives_json(chat_for):
    profile = chat_for("numbers_calls").profile
    assert Profile.from_json(profile.to_json()) == profile
    with pytest.raises(TokenError, match="derive it again"):
        Profile.from_json("{}")


def test_the_fingerprint_changes_with_template_arguments_and_vocabulary(chat_for):
    prints = {
        chat_for("chatml").profile.fingerprint,
        chat_for("trims").profile.fingerprint,
        chat_for("chatml", flag=1).profile.fingerprint,
    }
    assert len(prints) == 3


def test_all_end_of_sequence_ids_of_the_generation_config_stop(tmp_path, template_file):
    vocabulary = Vocabulary.of_bytes(["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
    vocabulary.save(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(template_file("chatml").read_text())
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    ids = [vocabulary.id_of("<|endoftext|>"), vocabulary.id_of("<|im_end|>")]
    (tmp_path / "generation_config.json").write_text(f'{{"eos_token_id": {ids}}}')
    chat = ChatTokenizer.from_pretrained(tmp_path)
    assert set(chat.stop_token_ids) == set(ids)
    turn = chat.begin([{"role": "user", "content": "u"}]).sampled([*vocabulary.encode("a")[0], ids[0]])
    assert turn.messages[-1]["content"] == "a"


def test_a_folder_without_template_or_tokenizer_is_refused(tmp_path):
    with pytest.raises(TokenError, match="found nothing at"):
        ChatTokenizer.from_pretrained(tmp_path / "missing")
    Vocabulary.of_bytes([]).save(tmp_path)
    with pytest.raises(TokenError, match="expected a chat template"):
        ChatTokenizer.from_pretrained(tmp_path)


def test_a_tokenizer_that_truncates_and_pads_does_neither_here(tmp_path, template_file):
    from tokenizers import Tokenizer

    Vocabulary.of_bytes(["<|im_start|>", "<|im_end|>"]).save(tmp_path)
    theirs = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    theirs.enable_truncation(8, direction="left")
    theirs.enable_padding(length=4000)
    chat = ChatTokenizer.from_pretrained(theirs, chat_template=template_file("chatml").read_text())
    ids = chat.begin([{"role": "user", "content": "x" * 1000}]).ids
    text = "<|im_start|>user\n" + "x" * 1000 + "<|im_end|>\n<|im_start|>assistant\n"
    assert chat.vocabulary.decode(ids) == text
    assert theirs.truncation["max_length"] == 8


SCHEMAS = "{% for t in tools or [] %}{{ «» }}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("shown", "form"),
    [
        ("t | tojson", "wrapped"),
        ("t.function.name + t.function.description", "wrapped"),
        ("t.name + ': ' + t.description", "bare"),
        ("t.name ~ t.description", "bare"),
        ("'a tool'", "none"),
    ],
)
def test_the_form_of_tool_schemas_is_derived_and_used(shown, form):
    chat = ChatTokenizer(ChatTemplate(SCHEMAS.replace("«»", shown)), Vocabulary.of_bytes([]))
    assert chat.profile.schemas == form
    function = {"name": "look", "description": "finds", "parameters": {"type": "object"}}
    prompt = chat.begin([{"role": "user", "content": "u"}], [{"type": "function", "function": function}])
    text = chat.vocabulary.decode(prompt.ids)
    assert ("look" in text and "finds" in text) is (form != "none")
