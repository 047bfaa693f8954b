"""The format of a template is proved by reading back what it renders."""

import json
import time

import pytest

from miles_tito import ChatTokenizer
from miles_tito.errors import TemplateError
from miles_tito.parsers.detect import TOOLS, detect, reads_back
from miles_tito.parsers.formats import FORMATS, PLAIN, format_named
from miles_tito.profile import EPOCH
from miles_tito.render import ChatTemplate
from miles_tito.verify.vocabulary import default_vocabulary

FUNCTIONS = (
    "{% for c in m.tool_calls %}{% set f = c.function %}<tool_call>\n<function={{ f.name }}>\n"
    "{% for k, v in f.arguments.items() %}<parameter={{ k }}>\n{{ v if v is string else v | tojson }}\n</parameter>\n"
    "{% endfor %}</function>\n</tool_call>{% endfor %}"
)
HERMES = (
    '{% for c in m.tool_calls %}<tool_call>{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}</tool_call>{% endfor %}"
)
KIMI = (
    "{% if m.tool_calls %}<|tool_calls_section_begin|>{% for c in m.tool_calls %}<|tool_call_begin|>{{ c.id }}"
    "<|tool_call_argument_begin|>{{ c.function.arguments | tojson }}<|tool_call_end|>{% endfor %}"
    "<|tool_calls_section_end|>{% endif %}"
)
_PAIRS = "{% for k, v in c.function.arguments.items() %}PAIR{{ ', ' if not loop.last }}{% endfor %}"
UNQUOTED = (
    "{% for c in m.tool_calls %}[{{ c.function.name }}(" + _PAIRS.replace("PAIR", "{{ k }}={{ v }}") + ")]{% endfor %}"
)
STRUNG = HERMES.replace(
    "{{ c.function.arguments | tojson }}",
    "{{ '{' }}" + _PAIRS.replace("PAIR", "{{ k | tojson }}: {{ v | string | tojson }}") + "{{ '}' }}",
)


def template(calls="", *, reasoning="", prompt="", system=""):
    return ChatTemplate(
        f"{system}{{% for m in messages %}}{{{{ '<|im_start|>' + m.role + '\n' }}}}{reasoning}{{{{ m.content }}}}"
        f"{calls}<|im_end|>\n{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{{{{ '<|im_start|>assistant\n' }}}}{prompt}{{% endif %}}"
    )


THINKS = "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"


@pytest.mark.parametrize(
    ("calls", "name"),
    [("", "plain"), (HERMES, "hermes"), (FUNCTIONS, "qwen3_coder"), (KIMI, "kimi_k2"), (UNQUOTED, "plain")],
)
def test_the_format_is_the_one_that_reads_the_calls_back(calls, name):
    assert detect(template(calls)) == name


def test_calls_whose_arguments_change_their_type_are_not_read_back():
    assert detect(template(STRUNG)) == "plain"


def test_a_format_that_only_the_instructions_show_is_none():
    system = 'Call as <tool_call>{"name": "f", "arguments": {}}</tool_call>\n'
    assert detect(template("", system=system)) == "plain"
    assert detect(template(FUNCTIONS, system=system)) == "qwen3_coder"


@pytest.mark.parametrize("prompt", ["", "<think>\n", "<think>\n\n</think>\n\n"])
def test_reasoning_is_read_back(prompt):
    assert detect(template(HERMES, reasoning=THINKS, prompt=prompt)) == "hermes+think"
    assert detect(template("", reasoning=THINKS, prompt=prompt)) == "think"


def test_reasoning_that_history_never_shows_is_known_from_the_generation_prompt():
    assert detect(template(HERMES, prompt="<think>\n")) == "hermes+think"
    assert detect(template(HERMES, prompt="<think></think>")) == "hermes+think"


def test_reasoning_that_only_the_instructions_name_is_known_from_them():
    assert detect(template("", system="Think between <think> and </think>.")) == "think"
    assert detect(template("{# <think></think> #}")) == "plain"


def test_other_marks_of_reasoning():
    reasoning = "{% if m.reasoning_content %}[THINK]{{ m.reasoning_content }}[/THINK]{% endif %}"
    assert detect(template(HERMES, reasoning=reasoning)) == "hermes+mistral_think"


def test_a_template_that_insists_on_results_is_given_some():
    insisting = "{% if messages[-1].tool_calls %}{{ raise_exception('no result') }}{% endif %}"
    assert detect(template(HERMES, system=insisting)) == "hermes"


def test_a_template_that_refuses_tools_has_no_calls():
    refusing = "{% if tools %}{{ raise_exception('no tools') }}{% endif %}"
    assert detect(template(HERMES, system=refusing)) == "plain"


def test_a_format_reads_its_own_template_back_and_no_other():
    assert reads_back(template(FUNCTIONS), format_named("qwen3_coder"))
    assert not reads_back(template(FUNCTIONS), format_named("hermes"))
    assert not reads_back(template(""), PLAIN)


PHI = HERMES.replace("</tool_call>", "<|/tool_call|>").replace("<tool_call>", "<|tool_call|>")
GRANITE = PHI.replace("<|/tool_call|>", "")


@pytest.mark.parametrize(("calls", "name"), [(PHI, "phi4_mini"), (GRANITE, "granite")])
def test_a_closing_mark_tells_formats_with_one_opening_mark_apart(calls, name):
    assert detect(template(calls)) == name


def test_a_profile_names_the_format_it_was_derived_with():
    source = template(FUNCTIONS, reasoning=THINKS)
    vocabulary = default_vocabulary(source)
    chat = ChatTokenizer(source, vocabulary)
    assert chat.profile.format == "qwen3_coder+think"
    transcript = chat.begin([{"role": "user", "content": "u"}], TOOLS)
    text = "<tool_call>\n<function=look_up>\n<parameter=code>\n42\n</parameter>\n</function>\n</tool_call><|im_end|>"
    ids = vocabulary.encode(text)[0]
    for message, value in ((transcript.parse(ids), "42"), (chat.parse(ids), 42), (chat.parse(ids, tools=TOOLS), "42")):
        assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"code": value}
    parser = transcript.stream_parser()
    (delta,) = [delta for number in ids for delta in parser.feed([number])] + parser.finish()
    assert json.loads(delta["tool_calls"][0]["function"]["arguments"]) == {"code": "42"}


@pytest.mark.parametrize(("prompt", "is_open"), [("<think>\n", True), ("<think>\n\n</think>\n\n", False), ("", False)])
def test_a_turn_begins_in_reasoning_where_the_prompt_opened_it(prompt, is_open):
    source = template(HERMES, reasoning=THINKS, prompt=prompt)
    chat = ChatTokenizer(source, default_vocabulary(source))
    transcript = chat.begin([{"role": "user", "content": "a <think>"}])
    message = transcript.parse(chat.vocabulary.encode("so</think>on<|im_end|>")[0])
    assert message.get("reasoning_content") == ("so" if is_open else None)
    assert chat.parse(chat.vocabulary.encode("so</think>on<|im_end|>")[0]) == message


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        (HERMES, "<tool_call>{oops</tool_call>"),
        (FUNCTIONS, "<tool_call>\n<function=f>\n</tool_call>"),
        (KIMI, "<|tool_calls_section_begin|><|tool_call_begin|>f<|tool_call_end|><|tool_calls_section_end|>"),
    ],
)
def test_a_call_that_cannot_be_read_never_breaks_the_session(calls, text):
    source = template(calls)
    chat = ChatTokenizer(source, default_vocabulary(source))
    transcript = chat.begin([{"role": "user", "content": "u"}], TOOLS)
    transcript = transcript.sampled(chat.vocabulary.encode(f"{text}<|im_end|>")[0])
    (found,) = transcript.messages[-1]["tool_calls"]
    assert found["invalid"] is True
    transcript = chat.append(transcript, [{"role": "user", "content": "that was no call"}])
    assert chat.verify(transcript).hard == 0


def test_an_invalid_call_goes_back_into_the_render_as_the_text_it_was(chat_for, encode):
    chat = chat_for("chatml")
    raw = "<tool_call>{oops</tool_call>"
    transcript = chat.begin([{"role": "user", "content": "u"}]).sampled(encode(chat, f"{raw}<|im_end|>"))
    transcript = chat.append(transcript, [{"role": "user", "content": "that was no JSON"}])
    report = chat.verify(transcript)
    assert (report.hard, report.soft) == (0, 0)


UNREADABLE = {"toolace-vllm": "strings stand without quotes"}
"""Templates that write calls which cannot be told apart from other ones."""


def prepared(path):
    source = ChatTemplate(path.read_bytes().decode())
    vocabulary = default_vocabulary(source)
    source = source.with_special_tokens(vocabulary.special_tokens)
    call = {"id": "functions.look_up:0", "type": "function", "function": {"name": "look_up", "arguments": ARGUMENTS}}
    turn = {"role": "assistant", "content": "", "tool_calls": [call]}
    for form in ("object", "string"):
        tried = source.with_arguments(form)
        try:
            messages = tried.normalised([{"role": "user", "content": "u"}, turn])
            return tried, tried.render(messages, tools=TOOLS, generation_prompt=False, now=EPOCH)
        except TemplateError:
            continue
    return source, ""


KNOWN = {
    "apertus": "apertus",
    "cohere2": "plain",
    "command-r-plus-tool-use": "command_r",
    "deepseek-ai-deepseek-r1-distill-qwen-32b": "deepseek_v3+think",
    "deepseek-v3": "deepseek_v3+think",
    "deepseek-v3.1": "deepseek_v31+think",
    "deepseek-v3.2-llamacpp": "deepseek_v32+think",
    "devstral-small-2507": "mistral",
    "functiongemma-vllm": "functiongemma",
    "gemma-4-31b": "gemma4+gemma4_thought",
    "gigachat3-10b-a1.8b": "gigachat",
    "glm-4.5": "glm45+think",
    "glm-4.7-flash": "glm47+think",
    "gpt-oss": "harmony",
    "granite-20b-fc-vllm": "granite_20b",
    "hermes-2-pro": "hermes",
    "hunyuan-a13b-vllm": "hunyuan",
    "internlm2-tool-vllm": "internlm2",
    "kimi-k2": "kimi_k2",
    "llama-3.1": "llama3_json",
    "llama4-pythonic-vllm": "pythonic",
    "minimax-m2": "minimax_m2+think",
    "mistral-nemo": "mistral",
    "nemotron-3-super": "qwen3_coder+think",
    "qwen2.5": "hermes",
    "qwen3": "hermes+think",
    "qwen3-coder": "qwen3_coder",
    "qwen3.5": "qwen3_coder+think",
    "seed-oss": "seed_oss+seed_think",
    "smollm3": "think",
    "stepfun3.5-flash": "qwen3_coder+think",
}
"""Formats of published templates, by the names of the corpus."""


def test_published_templates_have_their_known_formats(detected):
    found = {stem: name for stem, (name, _, _) in detected.items() if stem in KNOWN}
    assert found == {stem: name for stem, name in KNOWN.items() if stem in found}


ARGUMENTS = {"city": "zqRome", "days": 77, "code": "88"}


@pytest.fixture(scope="module")
def detected(corpus):
    """Of each template: its format, the text of a turn with a call, and the seconds of CPU that finding out took."""
    found = {}
    for path in corpus:
        source, text = prepared(path)
        start = time.process_time()
        found[path.stem] = (detect(source), text, time.process_time() - start)
    return found


def reads_calls(name):
    return not set(name.split("+")).isdisjoint(FORMATS)


def test_every_template_of_the_corpus_that_writes_calls_round_trips(detected):
    lost = [
        stem
        for stem, (name, text, _) in detected.items()
        if all(word in text for word in ("zqRome", "77", "88")) and stem not in UNREADABLE and not reads_calls(name)
    ]
    assert lost == []


@pytest.mark.slow
def test_a_table_of_the_formats_found(detected, capsys):
    with capsys.disabled():
        print()
        for stem, (name, _, took) in detected.items():
            print(f"{stem:45} {name:28} {'round trip' if reads_calls(name) else '-':12} {took * 1000:6.1f} ms")
        count = sum(reads_calls(name) for name, _, _ in detected.values())
        print(f"tool calls of {count} of {len(detected)} templates round-trip")
    assert max(took for *_, took in detected.values()) < 0.5
