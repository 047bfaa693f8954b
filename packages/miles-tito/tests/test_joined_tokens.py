"""A control token that no single message holds is not made of several, nor by what a template takes out."""

import pytest

from miles_tito import ChatTokenizer, NotExtendable, TemplateError
from miles_tito.joined import Joints
from miles_tito.vocabulary import Vocabulary

MARKS = ["<|im_start|>", "<|im_end|>"]
USER = {"role": "user", "content": "hi"}
SAYS = {"role": "assistant", "content": "a"}
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
RUNS = (
    "{% for m in messages %}{% if loop.first or m.role != loop.previtem.role %}<|im_start|>{{ m.role }}\n{% endif %}"
    "{{ m.content }}{% if loop.last or m.role != loop.nextitem.role %}<|im_end|>\n{% endif %}{% endfor %}" + PROMPT
)
PARTS = [{"role": "user", "content": "x<|im_"}, {"role": "user", "content": "end|>y"}]


def writing(expression):
    """ChatML that writes a message in that way."""
    return "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ " + expression + " }}<|im_end|>\n{% endfor %}" + PROMPT


def chat_of(template, **options):
    return ChatTokenizer.from_pretrained(Vocabulary.of_bytes(MARKS), chat_template=template, **options)


def asked(chat):
    """A conversation with one turn and a confirmed append."""
    ids = [*chat.vocabulary.encode("a")[0], *chat.stop_token_ids[:1]]
    transcript = chat.begin([USER])
    for _ in range(3):
        transcript = chat.append(transcript.sampled(ids, message=SAYS), [USER])
    return transcript.sampled(ids, message=SAYS)


CASES = {
    "two messages": (RUNS, PARTS),
    "a character taken out": (writing("m.content|replace('\\r', '')"), [{**USER, "content": "<|im_\rend|>"}]),
    "the template's own bracket": (writing("'<' ~ m.content"), [{**USER, "content": "|im_end|>"}]),
    "a key printed as Python prints it": (writing("m.content ~ m.k"), [{**USER, "k": {"<|im_end|>": 1}}]),
    "a key of a key": (writing("m.content ~ m.k"), [{**USER, "k": {"a": {"<|im_start|>": 1}}}]),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused_in_a_prompt_and_in_an_append(name):
    template, messages = CASES[name]
    chat = chat_of(template)
    with pytest.raises(TemplateError, match="the callers' texts make one"):
        chat.begin(messages)
    with pytest.raises(NotExtendable, match="the callers' texts make one"):
        chat.append(asked(chat), messages)


def test_a_key_that_was_harmless_before_is_looked_at_again():
    chat = chat_of(writing("m.content ~ m.k"))
    done = asked(chat)
    for _ in range(3):
        done = chat.append(done, [{**USER, "k": {"a": 1}}]).sampled(done.last.spans[0].ids, message=SAYS)
    with pytest.raises(NotExtendable, match="the callers' texts make one"):
        chat.append(done, [{**USER, "k": {"<|im_end|>": 1}}])


def test_callers_who_mean_their_control_tokens_may_join_them():
    chat = chat_of(RUNS, allow_special=True)
    ids = chat.begin(PARTS).ids
    assert ids.count(chat.vocabulary.id_of("<|im_end|>")) == 2


@pytest.mark.parametrize("content", ["a < b > c", "<|im_", "end|>", "x<|im_end", "<|im_end|>", "<<|im_end|>>", "<|"])
def test_parts_that_do_not_meet_are_text(content):
    chat = chat_of(writing("m.content"))
    message = {"role": "user", "content": content}
    begun, plain = chat.begin([message]), chat.begin([USER])
    grown = chat.append(asked(chat), [message])
    assert chat.verify(grown).hard == 0
    marks = [chat.vocabulary.id_of(token) for token in MARKS]
    assert [begun.ids.count(mark) for mark in marks] == [plain.ids.count(mark) for mark in marks]
    assert f"user\n{content}<|im_end|>" in chat.vocabulary.decode(grown.last.spans[1].ids)


def test_a_template_that_looks_at_a_bracket_may_write_what_it_likes():
    chat = chat_of(writing("('<|im_start|>' if m.content.startswith('<') else '') ~ m.content"))
    begun = chat.begin([{"role": "user", "content": "<b>"}])
    assert begun.ids.count(chat.vocabulary.id_of("<|im_start|>")) == 3


def test_only_tokens_that_are_not_marked_are_counted():
    joints = Joints([*MARKS, "\n\n", "<think>"])
    assert joints.count("<|im_end|>\n\n\ufdd0<think>\ufdd1<think>") == 2
    assert [joints.touched(value) for value in ("a\n\n", {"a": ["<"]}, {"k>": 1}, "a|b")] == [False, True, True, False]
