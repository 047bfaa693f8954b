"""Channels of gpt-oss: analysis, commentary, final, and messages to a recipient."""

import time

import pytest

from miles_tito import ChatTokenizer, StreamParser
from miles_tito.parsers.formats import format_named
from miles_tito.render import ChatTemplate
from miles_tito.verify.vocabulary import default_vocabulary


def parse(text):
    return StreamParser(format_named("harmony")).parse(text)


ANALYSIS = "<|channel|>analysis<|message|>why<|end|>"
START = "<|start|>assistant"


@pytest.mark.parametrize("end", ["<|return|>", "<|end|>", ""])
def test_analysis_is_reasoning_and_final_is_content(end):
    message = parse(f"{ANALYSIS}{START}<|channel|>final<|message|>so{end}")
    assert message == {"role": "assistant", "content": "so", "reasoning_content": "why"}


@pytest.mark.parametrize("end", ["<|call|>", ""])
@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.a <|constrain|>json<|message|>",
        " to=functions.a<|channel|>commentary json<|message|>",
        " to=functions.a<|channel|>analysis<|message|>",
        "<|channel|>commentary to=functions.a<|constrain|>json<|message|>",
    ],
)
def test_a_message_to_a_function_is_a_call(header, end):
    message = parse(f'{ANALYSIS}{START}{header}{{"x": "<|end|>"}}{end}')
    assert message["reasoning_content"] == "why"
    assert [call["function"] for call in message["tool_calls"]] == [{"name": "a", "arguments": '{"x": "<|end|>"}'}]
    assert message["content"] == ""


def test_commentary_to_nobody_is_content_before_the_call():
    message = parse(
        f"<|channel|>commentary<|message|>I look.<|end|>{START} to=functions.a<|channel|>commentary json<|message|>{{}}"
    )
    assert message["content"] == "I look."
    assert len(message["tool_calls"]) == 1


def test_texts_of_one_kind_are_parted_by_a_newline():
    message = parse(
        f"{ANALYSIS}{START}{ANALYSIS}{START}<|channel|>final<|message|>a<|end|>{START}<|channel|>final<|message|>b"
    )
    assert message == {"role": "assistant", "content": "a\nb", "reasoning_content": "why\nwhy"}


@pytest.mark.parametrize("body", ['{"x": ', "print(1)", "[1]", "{} and", ""])
def test_arguments_that_are_no_object_mark_the_call(body):
    opening = "<|channel|>commentary to=python<|message|>"
    (found,) = parse(f"{opening}{body}<|call|>")["tool_calls"]
    assert found["raw"] == f"{opening}{body}<|call|>"
    assert found["function"]["arguments"] == body
    assert found["error"].startswith("expected")


def test_text_without_a_channel_is_content():
    assert parse("so it is")["content"] == "so it is"


def test_an_unknown_header_is_content_with_its_message():
    text = "<|channel|>musing<|message|>hm"
    assert parse(text)["content"] == text


def test_an_unknown_header_with_a_recipient_is_a_marked_call():
    text = "<|channel|>comentary to=functions.a<|message|>{}<|call|>"
    (found,) = parse(text)["tool_calls"]
    assert found["raw"] == text


def test_content_streams_once_its_channel_is_known():
    parser = StreamParser(format_named("harmony"))
    assert parser.feed("<|channel|>final<|mess") == []
    assert parser.feed("age|>so ") == [{"content": "so "}]
    assert parser.feed("it<|en") == [{"content": "it"}]
    assert parser.feed("cil") == [{"content": "<|encil"}]


CHANNELS = """{% for m in messages %}{% if m.role == 'assistant' %}
{%- set last = loop.last and not add_generation_prompt %}
{%- if m.reasoning_content and (last or m.tool_calls) %}{{ '<|start|>assistant<|channel|>analysis<|message|>' }}
{{- m.reasoning_content + '<|end|>' }}{% endif %}{{ '<|start|>assistant' }}
{%- if m.tool_calls %}{{ ' to=functions.' + m.tool_calls[0].function.name + '<|channel|>commentary json<|message|>' }}
{{- m.tool_calls[0].function.arguments | tojson }}<|call|>
{%- else %}{{ '<|channel|>final<|message|>' + m.content + ('<|return|>' if last else '<|end|>') }}{% endif %}
{%- else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}"""


def test_the_mark_that_parts_channels_is_no_stop_of_the_engine():
    template = ChatTemplate(CHANNELS)
    chat = ChatTokenizer(template, default_vocabulary(template))
    assert chat.profile.format == "harmony"
    stops = [chat.vocabulary.token_of(number) for number in chat.stop_token_ids]
    assert sorted(stops) == ["<|call|>", "<|return|>"]
    transcript = chat.begin([{"role": "user", "content": "u"}])
    ids = chat.vocabulary.encode(f"{ANALYSIS}{START}<|channel|>final<|message|>so<|return|>")[0]
    transcript = transcript.sampled(ids)
    assert transcript.messages[-1] == {"role": "assistant", "content": "so", "reasoning_content": "why"}
    longer = chat.append(transcript, [{"role": "user", "content": "v"}])
    assert chat.vocabulary.decode(longer.ids).endswith("so<|end|><|start|>user<|message|>v<|end|><|start|>assistant")
    assert chat.verify(longer).hard == 0


@pytest.mark.parametrize(
    "header", [" " * 5000, "<|channel|>final" + " " * 5000 + "!", "<|channel|>final to=" + "a" * 20_000 + "<"]
)
def test_a_long_header_that_says_nothing_is_given_up_at_once(header):
    start = time.process_time()
    message = parse(f"{header}<|message|>so")
    assert time.process_time() - start < 1
    text = message["content"] or message["tool_calls"][0]["raw"]
    assert text == f"{header}<|message|>so"
