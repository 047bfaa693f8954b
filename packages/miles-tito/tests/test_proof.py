"""A bounded proof holds for what it was tried on, and whatever else a template looks at is derived from the history."""

import pytest

from miles_tito import ChatTokenizer, NotExtendable
from miles_tito.proof import kind_of
from miles_tito.render import ChatTemplate
from miles_tito.verify.vocabulary import default_vocabulary

USER = {"role": "user", "content": "hi"}
SAYS = {"role": "assistant", "content": "a"}
LOOP = "{%- for m in messages %}"
TURN = (
    "{{- '<|' + m.role + '|>' + m.content }}{% for call in m.tool_calls or [] %}"
    "{{ call.function.name + (call.function.arguments | tojson) }}{% endfor %}{{ '<|end|>' }}"
)
END = "{%- endfor %}"
PROMPT = "{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"


def chat_of(source):
    template = ChatTemplate(source)
    vocabulary = default_vocabulary(template)
    return ChatTokenizer(template.with_special_tokens(vocabulary.special_tokens), vocabulary)


def calling(*names):
    made = [
        {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for n, name in enumerate(names)
    ]
    return {"role": "assistant", "content": "", "tool_calls": made}


def results(turn):
    return [{"role": "tool", "tool_call_id": call["id"], "content": f"r{call['id']}"} for call in turn["tool_calls"]]


def tool(name, description="Says X."):
    function = {"name": name, "description": description, "parameters": {"type": "object", "properties": {}}}
    return {"type": "function", "function": function}


def grown(chat, transcript, turn, new):
    """The append, checked against the whole render."""
    ids = [*chat.vocabulary.encode("x")[0], *chat.stop_token_ids[:1]]
    after = chat.append(transcript.sampled(ids, message=turn), new)
    report = chat.verify(after)
    assert report.hard == 0, report.first
    return after


def text_of(chat, transcript):
    return chat.vocabulary.decode([number for span in transcript.last.spans for number in span.ids])


SWITCHED = (
    "{%- set ns = namespace(quick='') %}" + LOOP
    + "{% if '/quick' in m.content %}{% set ns.quick = '<|quick|>' %}{% endif %}"
    + "{%- if m.content.startswith('/slow') %}{% set ns.quick = '' %}{% endif %}"
    + "{{- '<|' + m.role + '|>' + (ns.quick if m.role == 'assistant' else '') + m.content + '<|end|>' }}" + END
    + "{%- if add_generation_prompt %}{{ '<|assistant|>' + ns.quick }}{% endif %}"
)  # fmt: skip


@pytest.mark.parametrize("role", ["system", "user"])
def test_a_word_of_an_earlier_message_that_the_template_looks_for_is_not_overlooked(role):
    chat = chat_of(SWITCHED)
    plain = grown(chat, chat.begin([USER]), SAYS, [USER])
    assert chat.profile.proofs["text>user"] == "bounded"
    assert chat.profile.triggers["text>user"] == ["/quick"]
    assert "<|quick|>" not in text_of(chat, plain)
    told = chat.begin([{"role": role, "content": "be /quick now"}, USER])
    assert text_of(chat, grown(chat, told, SAYS, [USER])).endswith("<|assistant|><|quick|>")
    later = grown(chat, plain, SAYS, [{"role": role, "content": "be /quick now"}])
    assert text_of(chat, grown(chat, later, SAYS, [USER])).endswith("<|assistant|><|quick|>")


def test_a_branch_does_not_learn_what_another_was_told():
    chat = chat_of(SWITCHED)
    plain = grown(chat, chat.begin([USER]), SAYS, [USER])
    told = grown(chat, plain, SAYS, [{"role": "user", "content": "/quick"}])
    assert "/quick" in told.trust.said
    assert "/quick" not in plain.trust.said


@pytest.mark.parametrize("given", [True, False])
def test_a_schema_that_is_looked_up_by_name_is_the_transcripts_own(given):
    found = "{% for t in tools or [] if t.function.name == m.name %}{{ t.function.description }}{% endfor %}"
    chat = chat_of(f"{LOOP}{{% if m.role == 'tool' %}}{found}{{% endif %}}{TURN}{END}{PROMPT}")
    turn = calling("look_up")
    after = grown(
        chat, chat.begin([USER], [tool("other", "No."), tool("look_up")] if given else None), turn, results(turn)
    )
    assert ("Says X.<|tool|>" in text_of(chat, after)) is given


def test_a_function_that_the_template_knows_by_name_has_a_proof_of_its_own():
    chat = chat_of(f"{LOOP}{{% if m.name == 'find' %}}{{{{ '#' ~ loop.index }}}}{{% endif %}}{TURN}{END}{PROMPT}")
    transcript = chat.begin([USER], [tool("look"), tool("find")])
    for name in ("look", "find", "look", "find"):
        turn = calling(name)
        transcript = grown(chat, transcript, turn, results(turn))
        assert ("#" in text_of(chat, transcript)) is (name == "find")
    assert dict(chat.profile.proofs) == {"1>tool|tools": "bounded", "1>tool|find|tools": "history"}


def test_a_longer_run_has_a_proof_of_its_own():
    chat = chat_of(
        "{%- set ns = namespace(run=0) %}" + LOOP + "{% set ns.run = ns.run + 1 if m.role == 'tool' else 0 %}"
        + "{% if ns.run == 3 %}{{ '#' ~ loop.index }}{% endif %}" + TURN + END + PROMPT
    )  # fmt: skip
    transcript = chat.begin([USER])
    for count in (2, 3, 2, 3):
        turn = calling(*["look"] * count)
        transcript = grown(chat, transcript, turn, results(turn))
        assert ("#" in text_of(chat, transcript)) is (count == 3)


def test_turns_with_reasoning_may_be_numbered():
    chat = chat_of(
        "{%- set ns = namespace(n=0) %}" + LOOP + "{% if m.reasoning_content %}{% set ns.n = ns.n + 1 %}{% endif %}"
        + "{{- '<|' + m.role + '|>' + m.content + '<|end|>' + (ns.n | string if m.reasoning_content else '') }}"
        + END + PROMPT
    )  # fmt: skip
    transcript = chat.begin([USER])
    for number in (1, 2, 3):
        transcript = grown(chat, transcript, {**SAYS, "reasoning_content": "hm"}, [USER])
        assert text_of(chat, transcript).startswith(f"{number}<|user|>")


def test_a_new_message_may_change_how_earlier_turns_would_be_written():
    chat = chat_of(
        "{%- set ns = namespace(last=-1) %}" + LOOP + "{% if m.role == 'user' and not m.content.startswith('<r>') %}"
        + "{% set ns.last = loop.index0 %}{% endif %}" + END + LOOP + "{{- '<|' + m.role + '|>' }}"
        + "{% if m.reasoning_content and loop.index0 > ns.last %}{{ '<think>' + m.reasoning_content + '</think>' }}"
        + "{% endif %}{{ m.content + '<|end|>' }}" + END + PROMPT
    )  # fmt: skip
    thinks = {**SAYS, "reasoning_content": "hm"}
    transcript = grown(chat, chat.begin([USER, SAYS, USER]), thinks, [{"role": "user", "content": "<r>1"}])
    transcript = grown(chat, transcript, thinks, [{"role": "user", "content": "<r>2"}])
    assert text_of(chat, grown(chat, transcript, thinks, [USER])) == "<|user|>hi<|end|><|assistant|>"


def test_the_kind_names_what_a_suffix_may_depend_on():
    new = [*results(calling("find", "look", "look")), USER]
    key = kind_of(calling("find", "look", "look"), new, with_tools=True, phrases=["find", "user"])
    assert key == "3>tools+user|3,1|find|tools"
    assert kind_of({**SAYS, "reasoning_content": "r"}, [USER], with_tools=False) == "why+text>user"


def test_a_word_that_makes_the_template_refuse_is_refused_with_its_words():
    chat = chat_of(
        LOOP + "{% if '/never' in m.content %}{{ raise_exception('not that') }}{% endif %}" + TURN + END + PROMPT
    )
    start = grown(chat, chat.begin([USER]), SAYS, [USER])
    with pytest.raises(NotExtendable, match="not that"):
        grown(chat, start, SAYS, [{"role": "user", "content": "/never"}])


def test_a_text_that_the_template_writes_only_once_is_not_lost():
    chat = chat_of(
        "{%- set ns = namespace(seen=[]) %}" + LOOP + "{% if m.role != 'tool' or m.content not in ns.seen %}"
        + TURN + "{% set ns.seen = ns.seen + [m.content] %}{% endif %}" + END + PROMPT
    )  # fmt: skip
    turn = calling("look")
    transcript = grown(chat, chat.begin([USER]), turn, results(turn))
    for content in ("one", "two"):
        transcript = grown(chat, transcript, turn, [{**results(turn)[0], "content": content}])
    assert chat.profile.proofs["1>tool"] == "history"
    with pytest.raises(NotExtendable, match="drops"):
        grown(chat, transcript, turn, [{**results(turn)[0], "content": "one"}])


@pytest.mark.parametrize("kind", ["user", "history"])
def test_a_user_who_writes_like_a_tool_moves_nothing(kind):
    """Qwen's templates take such a message for a result, and then write the reasoning of earlier turns."""
    chat = chat_of(
        "{%- set ns = namespace(last=messages|length - 1, open=true) %}"
        "{%- for m in messages[::-1] %}"
        "{% if ns.open and m.role == 'user' and not (m.content.startswith('<tool_response>')"
        " and m.content.endswith('</tool_response>')) %}{% set ns.open = false %}"
        "{% set ns.last = messages|length - 1 - loop.index0 %}{% endif %}{% endfor %}" + LOOP
        + "{{- '<|im_start|>' + m.role + '\n' }}{% if m.reasoning_content and loop.index0 > ns.last %}"
        "{{ '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}{% endif %}{{ m.content + '<|im_end|>\n' }}" + END
        + "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )  # fmt: skip
    wrapped = {"role": "user", "content": "<tool_response>\n4\n</tool_response>"}
    thinks = {**SAYS, "reasoning_content": "hm"}
    prompt = [USER] if kind == "user" else [USER, thinks, wrapped, thinks, USER]
    transcript = chat.begin(prompt)
    for new in (USER, wrapped, wrapped, USER, wrapped):
        transcript = grown(chat, transcript, thinks, [new])
        assert new["content"] in text_of(chat, transcript)
