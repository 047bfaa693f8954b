"""The table of families: data that agrees with what is derived, and says so where it does not."""

import pytest

from miles_core.errors import TokenError
from miles_tito import ChatTokenizer, NotExtendable
from miles_tito.families import FAMILIES, family_named
from miles_tito.parsers.formats import format_named
from miles_tito.profile import derive_profile
from miles_tito.render import ChatTemplate
from miles_tito.verify.vocabulary import default_vocabulary
from miles_tito.vocabulary import Vocabulary

CHATML = """{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.reasoning_content and (preserve_thinking or loop.last) %}<think>{{ m.reasoning_content }}</think>{% endif %}
{{- m.content }}{% for call in m.tool_calls or [] %}CALL{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
JSON_CALL = """<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>"""
XML_CALL = """<tool_call>
<function={{ call.function.name }}>
{% for name, value in call.function.arguments.items() %}<parameter={{ name }}>
{{ value if value is string else value | tojson }}
</parameter>
{% endfor %}</function>
</tool_call>"""
CONTROLS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]

SGLANG_TOOL_PARSERS = {
    *("deepseekv3", "deepseekv31", "deepseekv32", "deepseekv4", "glm", "glm45", "glm47", "gpt-oss", "hermes"),
    *("kimi_k2", "llama3", "minimax-m2", "mistral", "pythonic", "qwen", "qwen25", "qwen3_coder"),
}
SGLANG_REASONING_PARSERS = {
    *("deepseek-r1", "deepseek-v3", "deepseek-v4", "glm45", "gpt-oss", "kimi", "kimi_k2", "minimax"),
    *("minimax-append-think", "mistral", "nemotron_3", "qwen3", "qwen3-thinking"),
}


def chat(call: str, **options: object) -> ChatTokenizer:
    return ChatTokenizer.from_pretrained(
        Vocabulary.of_bytes(CONTROLS), chat_template=CHATML.replace("CALL", call), **options
    )


@pytest.mark.parametrize("name", list(FAMILIES))
def test_every_family_of_the_table_is_there_and_names_formats_that_exist(name):
    family = family_named(name)
    assert family.name == name
    assert format_named(family.format).name == family.format
    assert family.stops
    assert family.engine_tool_parser in SGLANG_TOOL_PARSERS
    assert family.engine_reasoning_parser in {"", *SGLANG_REASONING_PARSERS}
    thinks = "+" in family.format or family.format == "harmony"
    assert bool(family.engine_reasoning_parser) == thinks


def test_an_unknown_family_is_refused_with_the_nearest_name():
    with pytest.raises(TokenError, match=r"'qwen3\.6'"):
        family_named("qwen36")
    with pytest.raises(TokenError, match=r"known are qwen2\.5, qwen3"):
        family_named("zzz")


def test_a_family_adds_its_arguments_unless_the_caller_gives_others():
    assert chat(XML_CALL).profile.reasoning_kept == {"preserve_thinking": True}
    assert chat(XML_CALL, family="qwen3.6").profile.reasoning_kept == {}
    given = chat(XML_CALL, family="qwen3.6", template_kwargs={"preserve_thinking": False})
    assert given.template.kwargs == {"preserve_thinking": False}


def test_a_family_adds_the_stops_that_the_vocabulary_has():
    plain, named = chat(JSON_CALL), chat(JSON_CALL, family="qwen3")
    assert plain.profile.stops == ("<|im_end|>",)
    assert set(named.profile.stops) == {"<|im_end|>", "<|endoftext|>"}
    ids = named.vocabulary.encode("done<|endoftext|>")[0]
    turn = named.begin([{"role": "user", "content": "u"}]).sampled(ids)
    assert turn.messages[-1]["content"] == "done"


def test_a_family_reads_calls_where_the_template_writes_none():
    ids = Vocabulary.of_bytes(CONTROLS).encode('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>')[0]
    assert "tool_calls" not in chat("").parse(ids)
    assert chat("", family="qwen3").parse(ids)["tool_calls"][0]["function"]["name"] == "f"


def test_calls_that_the_template_writes_otherwise_contradict_the_family():
    assert chat(JSON_CALL, family="qwen3").parse([]) == {"role": "assistant", "content": ""}
    with pytest.raises(TokenError, match=r"as 'hermes', the format of family 'qwen3', .* as 'qwen3_coder'; use"):
        chat(XML_CALL, family="qwen3")
    with pytest.raises(TokenError, match="writes them as 'hermes'"):
        chat(JSON_CALL, family="qwen3.5")


def test_an_argument_that_the_template_never_mentions_contradicts_the_family():
    with pytest.raises(TokenError, match=r"'nemotron-3', which takes the argument truncate_history_thinking, .* never"):
        chat(XML_CALL, family="nemotron-3")


def test_an_end_of_turn_that_the_vocabulary_lacks_contradicts_the_family():
    with pytest.raises(TokenError, match=r"whose turns end with '<\|eot_id\|>', found one without that token"):
        chat(JSON_CALL, family="llama-3")


# family, template of the corpus, arguments, what is derived otherwise than the table says
DERIVED = [
    ("qwen2.5", "qwen2.5", {}, {}),
    ("qwen3", "qwen3", {}, {}),
    ("qwen3-next", "qwen3-thinking-2507", {}, {}),
    ("qwen3.5", "qwen3.5", {}, {}),
    ("glm-4.7", "glm-4.7-flash", {}, {}),
    # The instruct model's template knows no reasoning.
    ("kimi-k2.5", "kimi-k2", {}, {"format": "kimi_k2"}),
    ("minimax-m2.5", "minimax-m2", {}, {}),
    ("nemotron-3", "nemotron-3-nano-llamacpp", {}, {}),
    ("nemotron-3", "nemotron-3-super", {}, {}),
    # This copy opens reasoning in its generation prompt, as R1 does.
    ("deepseek-v3", "deepseek-v3", {}, {"format": "deepseek_v3+think"}),
    ("deepseek-v3.1", "deepseek-v3.1", {}, {}),
    ("deepseek-v3.2", "deepseek-v3.2-llamacpp", {}, {}),
    ("deepseek-v4", "deepseek-v4", {}, {}),
    ("gpt-oss", "gpt-oss", {}, {}),
    ("llama-3", "llama-3.1", {}, {}),
    ("mistral", "mistral-nemo", {}, {}),
    ("mistral", "devstral-small-2507", {}, {}),
]


def test_a_template_whose_stop_the_vocabulary_lacks_is_refused_with_that_token():
    source = """{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""
    chat = ChatTokenizer.from_pretrained(Vocabulary.of_bytes(["<|assistant|>"]), chat_template=source)
    says = {"role": "assistant", "content": "a"}
    start = chat.begin([{"role": "user", "content": "u"}])
    with pytest.raises(NotExtendable, match=r"writes no stop token .* only '<.user.>', which it lacks") as caught:
        chat.append(start.sampled([97], message=says), [{"role": "user", "content": "u"}])
    assert "tokenizer that the template was written for" in caught.value.help


@pytest.mark.shared
def test_glm_with_the_vocabulary_of_qwen_names_the_tokens_that_are_missing(template_of, tokenizers_folder):
    folder = tokenizers_folder / "qwen3"
    if not folder.is_dir():
        pytest.skip("no tokenizer qwen3 among the tokenizers")
    chat = ChatTokenizer.from_pretrained(folder, chat_template=template_of("glm-4.7-flash", {}).source)
    start = chat.begin([{"role": "user", "content": "u"}])
    with pytest.raises(NotExtendable, match=r"only '<.user.>', which it lacks"):
        chat.append(
            start.sampled([97], message={"role": "assistant", "content": "a"}), [{"role": "user", "content": "u"}]
        )


@pytest.fixture(scope="module")
def template_of(corpus, tokenizers_folder):
    def read(name: str, kwargs: dict[str, object]) -> ChatTemplate:
        known = {path.stem: path for path in corpus}
        known["deepseek-v4"] = tokenizers_folder / "deepseek-v4" / "chat_template.jinja"
        if name not in known:
            pytest.skip(f"no template {name} in the corpus")
        return ChatTemplate(known[name].read_text(), kwargs=kwargs)

    return read


@pytest.mark.shared
@pytest.mark.parametrize(("name", "file", "kwargs", "otherwise"), DERIVED)
def test_what_is_derived_from_a_real_template_is_what_the_table_says(template_of, name, file, kwargs, otherwise):
    family, template = family_named(name), template_of(file, kwargs)
    vocabulary = default_vocabulary(template)
    profile, _ = derive_profile(template.with_special_tokens(vocabulary.special_tokens), vocabulary)
    assert profile.format == otherwise.get("format", family.format)
    assert family.stops[0] in profile.stops
    assert dict(profile.reasoning_kept or {}) == family.template_kwargs


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize(("name", "file", "kwargs", "otherwise"), DERIVED)
def test_a_real_template_can_be_used_under_its_familys_name(template_of, name, file, kwargs, otherwise):
    template = template_of(file, kwargs)
    vocabulary = default_vocabulary(template)
    by_name = ChatTokenizer.from_pretrained(
        vocabulary, chat_template=template.source, template_kwargs=kwargs, family=name
    )
    arguments = {**family_named(name).template_kwargs, **kwargs}
    derived = ChatTokenizer.from_pretrained(vocabulary, chat_template=template.source, template_kwargs=arguments)
    messages = [{"role": "user", "content": "u"}]
    assert by_name.begin(messages).ids == derived.begin(messages).ids
    assert set(by_name.stop_token_ids) >= set(derived.stop_token_ids)
    assert by_name.profile.format == derived.profile.format
