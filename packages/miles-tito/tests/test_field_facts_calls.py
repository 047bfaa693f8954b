"""Faults that people met with calls, unfinished turns and threads, each as the fact that rules out its kind."""

import copy
import json
import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_core.errors import TokenError
from miles_core.sample import Origin
from miles_tito import ChatTokenizer, NotExtendable, TemplateError
from miles_tito.parsers.formats import FORMATS, format_named
from miles_tito.parsers.stream import StreamParser, join_deltas
from miles_tito.verify import check_template

from .conversations import KINDS, Speaker
from .duel import Duel
from .oracle import CLOCK
from .traits import template_with
from .written_turns import WRITTEN

USER = {"role": "user", "content": "ask"}
FORMS = {  # how templates write the arguments of a call
    "iterated": "{% for k, v in call.function.arguments | items %}{{ k }}={{ v }};{% endfor %}",
    "items called": "{% for k, v in call.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}",
    "dumped": "{{ call.function.arguments | tojson }}",
    "joined": "{{ '' + call.function.arguments }}",
}
SOURCE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for call in m.tool_calls or [] %}{{ call.function.name }}"
    "«form»{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def turn_with(arguments):
    call = {"id": "abcdefgh1", "type": "function", "function": {"name": "find", "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


RESULT = {"role": "tool", "tool_call_id": "abcdefgh1", "name": "find", "content": "r"}


# Arguments as a JSON string crash templates that iterate over them.
@pytest.mark.parametrize("form", FORMS)
@given(
    arguments=st.dictionaries(st.text("abc", min_size=1), st.text("xyz ") | st.integers(0, 9), min_size=1, max_size=3)
)
@settings(max_examples=6, deadline=None)
def test_arguments_as_text_and_as_an_object_give_the_same_ids_and_stay_as_they_came(form, arguments):
    chat = Duel(SOURCE.replace("«form»", FORMS[form])).chat
    seen = []
    for given_as in (json.dumps(arguments), arguments):
        turn = turn_with(given_as)
        before = copy.deepcopy(turn)
        done = chat.begin([USER]).sampled(chat.vocabulary.encode("x<|end|>")[0], message=turn)
        grown = chat.append(done, [RESULT])
        assert turn == before == grown.messages[1]
        assert json.dumps(arguments) in str([grown.messages[1]]) or grown.messages[1] == turn
        seen.append((grown.ids, chat.begin([USER, turn, RESULT]).ids))
        assert chat.verify(grown).hard == 0
    assert seen[0] == seen[1]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("arguments", ["not json", "[1, 2]", '{"a": ', "", None])
def test_arguments_that_are_no_object_are_refused_or_kept_and_nothing_else_breaks(form, arguments):
    chat = Duel(SOURCE.replace("«form»", FORMS[form])).chat
    done = chat.begin([USER]).sampled(chat.vocabulary.encode("x<|end|>")[0], message=turn_with(arguments))
    try:
        grown = chat.append(done, [RESULT])
    except NotExtendable:  # and not an error of Python or of the template engine
        return
    assert chat.vocabulary.decode(grown.ids).endswith("<|tool|>r<|end|><|assistant|>")


# Proxy and engine dump a tool schema with its fields in another order.
@given(order=st.permutations(["type", "function"]), inner=st.permutations(["name", "description", "parameters"]))
@settings(max_examples=6, deadline=None)
def test_schemas_repeated_later_are_those_of_the_prompt_to_the_letter(order, inner):
    function = {"name": "find", "description": "Zürich <b>&'\"", "parameters": {"type": "object", "properties": {}}}
    tool = {"type": "function", "function": {key: function[key] for key in inner}}
    tools = [{key: tool[key] for key in order}]
    duel = Duel(template_with(["tools after every system message"]))
    start = [{"role": "system", "content": "kwaawk"}, {"role": "user", "content": "kwabwk"}]
    steps = Speaker(random.Random(0), reasoning=False).steps(["system", "tool", "system"])
    found = duel.run(start, tools, steps)
    assert [outcome.verdict for outcome in found] == ["agree"] * 3
    text = duel.chat.vocabulary.decode(found[-1].transcript.ids)
    assert text.count(json.dumps(tools, ensure_ascii=False)) == 4  # at the start and after each of three systems


# The parser never matched, and rewards rose without a call ever made.
def test_calls_that_no_parser_reads_are_reported(tmp_path):
    path = tmp_path / "template.jinja"
    path.write_text(SOURCE.replace("«form»", "@@{{ call.function.arguments | tojson }}@@"))
    report = check_template(path, thinking=False)
    assert any("calls" in finding.what and "read" in finding.what for finding in report.findings)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_call_cut_anywhere_is_read_or_marked_and_its_text_is_kept(name):
    written = WRITTEN[name]
    parser = StreamParser(format_named(name))
    whole = parser.parse(written.text)
    assert [call["function"]["name"] for call in whole["tool_calls"]] == ["look_up", "ping"]
    rng = random.Random(name)
    for cut in sorted(rng.sample(range(len(written.before) + 1, len(written.text)), 25)):
        message = StreamParser(format_named(name)).parse(written.text[:cut])
        calls = message.get("tool_calls") or []
        good = [call for call in calls if not call.get("invalid")]
        bad = "".join(call.get("raw", "") for call in calls if call.get("invalid"))
        assert len(good) <= 2
        kept = message["content"] + bad
        # What is not among the calls that were read is in the content or in the raw text of a marked call.
        tail = written.text[len(written.before) : cut].strip()[-4:]
        assert good or tail in kept, (cut, message)


# A malformed call loses the whole turn, or is evaluated.
@pytest.mark.parametrize("name", sorted(FORMATS))
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_no_text_makes_a_parser_fail_or_run_something(name, data):
    text = list(WRITTEN[name].text)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(text)))
        what = data.draw(
            st.sampled_from(["", '"', "{", "}", "<", ">", "__import__('os').abort()", "\n", "(", "]", "é"])
        )
        text[place : place + data.draw(st.integers(0, 3))] = [what]
    whole = StreamParser(format_named(name)).parse("".join(text))
    parts, stream = [], StreamParser(format_named(name))
    rest = "".join(text)
    while rest:
        size = data.draw(st.integers(1, 40))
        parts += stream.feed(rest[:size])
        rest = rest[size:]
    assert join_deltas([*parts, *stream.finish()]) == whole
    for call in whole.get("tool_calls") or []:
        if call.get("invalid"):
            assert call["raw"]
            assert call["error"]
        else:
            assert isinstance(json.loads(call["function"]["arguments"]), dict)


def test_a_malformed_call_keeps_the_turn_and_the_tool_may_answer_with_the_error(chat_for):
    chat = chat_for("chatml")
    body = 'fine so far <tool_call>{"name": "find", "arguments": {broken</tool_call><|im_end|>'
    transcript = chat.begin([USER]).sampled(chat.vocabulary.encode(body)[0])
    (call,) = transcript.messages[-1]["tool_calls"]
    assert call["invalid"]
    assert transcript.messages[-1]["content"] == "fine so far "
    grown = chat.append(
        transcript, [{"role": "tool", "tool_call_id": call["id"], "content": f"error: {call['error']}"}]
    )
    assert chat.vocabulary.decode(grown.ids).count(body) == 1
    assert chat.verify(grown).hard == 0


# Turns are merged past a truncated or an aborted one.
@pytest.mark.parametrize("finish", ["length", "aborted"])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_follows_an_unfinished_turn(finish, kind):
    chat = Duel(template_with()).chat
    step = Speaker(random.Random(kind)).step(kind)
    cut = chat.begin([USER]).sampled([65, 66], message=step.turn, finish=finish)
    with pytest.raises(NotExtendable) as refusal:
        chat.append(cut, step.new)
    assert refusal.value.help
    with pytest.raises(TokenError, match="awaits a turn"):
        cut.sampled([67])
    if finish == "aborted":
        with pytest.raises(NotExtendable, match="aborted"):
            chat.append(cut, step.new, close_truncated=True)
    else:
        closed = chat.append(cut, step.new, close_truncated=True)
        assert sum(closed.loss_mask) == 2
        assert chat.verify(closed).hard == 0


# A fast tokenizer shared by threads raises "Already borrowed".
@pytest.mark.shared
def test_threads_that_share_a_real_tokenizer_get_what_one_gets(tokenizers_folder):
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(tokenizers_folder / "smollm2")
    chat = ChatTokenizer.from_pretrained(theirs)

    def session(number):
        transcript = chat.begin([{"role": "user", "content": f"question {number} " * 10}])
        for _ in range(3):
            ids = chat.vocabulary.encode(f"answer {number} " * 20)[0]
            transcript = transcript.sampled([*ids, chat.stop_token_ids[0]])
            transcript = chat.append(transcript, [{"role": "user", "content": f"more {number}"}])
        assert chat.verify(transcript).hard == 0
        return transcript.ids

    expected = [session(number) for number in range(4)]
    found, errors = {}, []

    def work(number):
        try:
            for _ in range(2):
                theirs("work of somebody else " * 9, truncation=True, max_length=8)  # sets it up anew each time
                found.setdefault(number, []).append(session(number))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert found == {number: [ids] * 2 for number, ids in enumerate(expected)}


def test_a_template_that_fails_in_any_way_is_an_error_of_the_template():
    failing = [
        "{{ 1 / 0 }}",
        "{{ messages[99].content }}",
        "{{ raise_exception('no') }}",
        "{{ none + 1 }}",
        "{{ x() }}",
    ]
    for code in failing:
        with pytest.raises(TemplateError):
            Duel("{% for m in messages %}{{ m.content }}<|end|>{% endfor %}" + code).chat.begin([USER], now=CLOCK)


def test_origins_say_who_wrote_what():
    chat = Duel(template_with()).chat
    grown = chat.append(chat.begin([USER]).sampled(chat.vocabulary.encode("a<|im_end|>")[0]), [USER])
    assert [span.origin for span in grown.spans] == [
        Origin.PROMPT,
        Origin.SAMPLED,
        Origin.GLUE,
        Origin.ENVIRONMENT,
        Origin.GLUE,
    ]
