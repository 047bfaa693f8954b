"""Messages to text as templates expect them."""

from datetime import datetime

import pytest

from miles_core.errors import RecordError
from miles_tito import TemplateError
from miles_tito.render import ChatTemplate

NOW = datetime(2026, 3, 4, 5, 6, 7)


def render(source, messages, *, tools=None, generation_prompt=False, **options):
    template = ChatTemplate(source, **options)
    return template.render(template.normalised(messages), tools=tools, generation_prompt=generation_prompt, now=NOW)


ASSISTANT = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"b": 1, "a": "é"}'}}],
}
ARGUMENTS = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"


def test_json_string_arguments_reach_the_template_as_an_object_in_their_own_order():
    assert render(ARGUMENTS, [ASSISTANT]) == '{"b": 1, "a": "é"}'


def test_a_template_that_joins_arguments_to_text_gets_a_string():
    source = "{{ 'x' + messages[0].tool_calls[0].function.arguments }}"
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    assert (
        render(source, [{"role": "assistant", "content": "", "tool_calls": [call]}], arguments="string") == 'x{"a": 1}'
    )


@pytest.mark.parametrize(
    ("content", "text"),
    [(None, ""), ("a", "a"), ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"), ([], "")],
)
def test_content_is_always_a_string(content, text):
    assert render("<{{ messages[0].content }}>", [{"role": "user", "content": content}]) == f"<{text}>"


def test_an_image_is_refused_and_not_dropped():
    with pytest.raises(RecordError, match="image_url"):
        render("{{ messages[0].content }}", [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}])


def test_a_tool_result_learns_the_name_of_its_function():
    result = {"role": "tool", "tool_call_id": "c1", "content": "r"}
    assert render("{{ messages[1].name }}", [ASSISTANT, result]) == "f"


def test_null_fields_are_undefined_and_reasoning_has_all_its_names():
    message = {"role": "assistant", "content": "a", "reasoning_content": None, "tool_calls": []}
    source = "{{ messages[0].reasoning_content is defined }} {{ 'tool_calls' in messages[0] }}"
    assert render(source, [message]) == "False False"
    thinking = {"role": "assistant", "content": "a", "reasoning": "r"}
    assert render("{{ messages[0].reasoning_content + messages[0].thinking }}", [thinking]) == "rr"


def test_the_clock_is_the_one_given():
    assert render("{{ strftime_now('%d.%m.%Y') }}", []) == "04.03.2026"


def test_generation_blocks_and_loop_controls_render():
    body = "{% if loop.index0 %}{% break %}{% endif %}{% generation %}{{ m.content }}{% endgeneration %}"
    source = "{% for m in messages %}" + body + "{% endfor %}"
    assert render(source, [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]) == "a"


def test_arguments_of_every_render_and_special_tokens_reach_the_template():
    source = "{{ bos_token }}{{ flag }}"
    assert render(source, [], kwargs={"flag": 7}, special_tokens={"bos_token": "<s>"}) == "<s>7"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no') }}",
        "{{ 'a' + 1 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ x.y }}",
    ],
)
def test_whatever_goes_wrong_inside_a_template_is_its_refusal(source):
    with pytest.raises(TemplateError):
        render(source, [])


def test_a_template_that_is_no_jinja_is_refused_with_its_line():
    with pytest.raises(TemplateError, match="line 2"):
        ChatTemplate("a\n{% if %}")


@pytest.mark.parametrize(
    "source",
    [
        "{% break %}",
        "{% for a in b %}" * 25 + "{% endfor %}" * 25,
        "{{ dict(a=1, a=2) }}",
        "{{ " + "9" * 5000 + " }}",
        "{% if a %}" * 300 + "{% endif %}" * 300,
        "{{ " + "1 + " * 5000 + "1 }}",
    ],
)
def test_a_template_that_python_cannot_compile_is_refused_in_a_sentence(source):
    with pytest.raises(TemplateError, match="expected a chat template"):
        ChatTemplate(source)


@pytest.mark.parametrize("source", ["{{ 'x' * 10**18 }}", "{{ '\\ud800' }}", "{{ '' | center(10**18) }}"])
def test_a_template_that_fails_says_so(source):
    with pytest.raises(TemplateError, match="fails on this conversation"):
        render(source, [])


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt"])
def test_an_argument_that_every_render_sets_is_refused(name):
    with pytest.raises(TemplateError, match=f"found {name}, which every render sets"):
        ChatTemplate("x", kwargs={name: 1})


def test_half_a_character_that_arguments_escape_is_rendered_as_a_replacement():
    template = ChatTemplate("{{ messages[0].tool_calls[0].function.arguments | tojson }}")
    arguments = r'{"\ud800k": ["\udfff", "\ud83e\udd16"]}'
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    text = template.render(template.normalised([message]), generation_prompt=False, now=NOW)
    assert text == '{"\ufffdk": ["\ufffd", "\U0001f916"]}'
    assert call["function"]["arguments"].startswith(r'{"\ud800')
