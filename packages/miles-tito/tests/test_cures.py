"""A refusal says what would let the append through, and that is true."""

from pathlib import Path

import pytest

from miles_tito import ChatTokenizer, NotExtendable, Profile, TemplateError
from miles_tito.render import ChatTemplate
from miles_tito.verify.vocabulary import default_vocabulary

TEMPLATES = Path(__file__).parent / "templates"

USER = {"role": "user", "content": "hi"}
SYSTEM = {"role": "system", "content": "be brief"}
SAYS = {"role": "assistant", "content": "fine"}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "r"}


def calling(count=1, content=""):
    made = [
        {"id": f"c{n + 1}", "type": "function", "function": {"name": "look", "arguments": "{}"}} for n in range(count)
    ]
    return {"role": "assistant", "content": content, "tool_calls": made}


def results(count):
    return [{**RESULT, "tool_call_id": f"c{n + 1}"} for n in range(count)]


def refused(chat, turn, new):
    done = chat.begin([USER]).sampled([*chat.vocabulary.encode("x")[0], *chat.stop_token_ids[:1]], message=turn)
    with pytest.raises(NotExtendable) as caught:
        chat.append(done, new)
    assert caught.value.reason
    assert caught.value.role == new[0]["role"]
    assert caught.value.divergence
    assert caught.value.help in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("notes_what_it_strips", {"preserve_thinking": True}), ("counts_unless_told", {"house_style": False})],
)
def test_an_argument_that_makes_the_append_sound_is_named_recorded_and_works(chat_for, encode, name, arguments):
    chat = chat_for(name)
    error = refused(chat, SAYS, [USER])
    assert error.arguments == arguments
    assert repr(arguments) in error.help
    assert dict(chat.profile.cures) == {"text>user": arguments}
    assert Profile.from_json(chat.profile.to_json()) == chat.profile
    better = chat_for(name, **arguments)
    transcript = better.begin([USER])
    for _ in range(3):
        transcript = better.append(transcript.sampled(encode(better, "fine<|end|>")), [USER])
    assert better.verify(transcript).hard == 0


@pytest.mark.parametrize(
    ("name", "turn", "new", "help", "last", "instead"),
    [
        ("late_rules_are_developers", SAYS, [SYSTEM], "'developer'", SAYS, [{**SYSTEM, "role": "developer"}]),
        ("merges_system", SAYS, [SYSTEM], "'developer'", SAYS, [{**SYSTEM, "role": "developer"}]),
        ("one_call_only", calling(2), results(2), "one tool call", calling(1), results(1)),
        ("drops_tool_calls", calling(), results(1), "without tool_calls", {**SAYS, "content": "look {}"}, results(1)),
        ("drops_tool_results", calling(), results(1), "role 'user'", calling(), [{"role": "user", "content": "r"}]),
        ("text_after_results", calling(content="so"), results(1), "without its text", calling(), results(1)),
        ("results_end_the_talk", calling(), [RESULT, USER], "after the next turn", calling(), [RESULT]),
    ],
)
def test_another_role_or_grouping_that_works_is_named(chat_for, name, turn, new, help, last, instead):
    chat = chat_for(name)
    assert help in refused(chat, turn, new).help
    ids = [*chat.vocabulary.encode("x")[0], *chat.stop_token_ids[:1]]
    done = chat.append(chat.begin([USER]).sampled(ids, message=last), instead)
    assert chat.verify(done).hard == 0


def test_where_nothing_helps_no_argument_is_named(chat_for):
    error = refused(chat_for("no_stop"), SAYS, [USER])
    assert error.arguments == {}
    assert "end-of-sequence" in error.help


def test_a_divergence_speaks_in_the_messages_own_words(chat_for):
    error = refused(chat_for("merges_system"), {**SAYS, "content": "the last word"}, [SYSTEM])
    shown = f"{error.divergence.before}{error.divergence.expected}{error.divergence.found}"
    assert "be brief" in shown
    assert "the last word" in shown
    assert "qz" not in shown


def test_a_transcript_in_the_wrong_state_says_what_it_lacks(chat_for, encode):
    chat = chat_for("chatml")
    start = chat.begin([USER])
    for transcript, expected in [
        (start, "a sampled turn"),
        (start.sampled(encode(chat, "cut of"), finish="length"), "<|im_end|>"),
        (start.sampled(encode(chat, "brok"), finish="aborted"), "a finished turn"),
    ]:
        with pytest.raises(NotExtendable) as caught:
            chat.append(transcript, [USER])
        assert caught.value.divergence.expected == expected
        assert chat.vocabulary.decode(transcript.ids).endswith(caught.value.divergence.before)
        assert caught.value.help


def test_a_cure_is_looked_for_once(chat_for, monkeypatch):
    chat = chat_for("drops_late_system", once=True)
    refused(chat, SAYS, [SYSTEM])
    calls = []
    rendered = type(chat.template).render

    def counted(self, *arguments, **keywords):
        calls.append(1)
        return rendered(self, *arguments, **keywords)

    monkeypatch.setattr(type(chat.template), "render", counted)
    refused(chat, SAYS, [SYSTEM])
    assert len(calls) < 10


KINDS = [
    (SAYS, [USER]),
    (SAYS, [SYSTEM]),
    (SAYS, [{**SYSTEM, "role": "developer"}]),
    (SAYS, [{"role": "assistant", "content": "shot"}]),
    (SAYS, [USER, {"role": "assistant", "content": "shot"}, {"role": "user", "content": "again"}]),
    (calling(), results(1)),
    (calling(content="so"), results(1)),
    (calling(2), results(2)),
    (calling(), [RESULT, USER]),
    (calling(), [RESULT, SYSTEM]),
    ({"role": "assistant", "content": ""}, [USER]),
]


def refusals_of(chat):
    """Every refusal of the kinds above that a prompt of one user message leads to."""
    ids = [*chat.vocabulary.encode("x")[0], *chat.stop_token_ids[:1]]
    for turn, new in KINDS:
        try:
            chat.append(chat.begin([USER]).sampled(ids, message=turn), new)
        except NotExtendable as error:
            yield error
        except TemplateError:
            return


@pytest.mark.parametrize("name", sorted(path.stem for path in TEMPLATES.glob("*.jinja")))
def test_no_refusal_of_a_small_template_lacks_its_divergence_or_its_help(chat_for, name):
    for error in refusals_of(chat_for(name)):
        assert error.divergence
        assert error.divergence.expected != error.divergence.found
        assert error.help.endswith(".")


@pytest.mark.slow
@pytest.mark.shared
def test_no_refusal_over_the_corpus_lacks_its_divergence_or_its_help(corpus):
    refused = helped = 0
    for path in corpus:
        template = ChatTemplate(path.read_bytes().decode("utf-8"))
        vocabulary = default_vocabulary(template)
        chat = ChatTokenizer(template.with_special_tokens(vocabulary.special_tokens), vocabulary)
        for error in refusals_of(chat):
            assert error.divergence, path.name
            assert error.divergence.expected != error.divergence.found, path.name
            assert error.help, path.name
            refused += 1
            helped += "sound" in error.help
    print(f"\n{refused} refusals over {len(corpus)} templates, {helped} with a way that was tried and works")
    assert refused > 50
    assert helped > refused / 2
