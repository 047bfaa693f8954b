"""The comparison finds what is planted in a transcript, and calls it by its kind."""

from dataclasses import replace

import pytest

from miles_core.sample import Origin, Span

USER = {"role": "user", "content": "hi"}


@pytest.fixture
def grown(chat_for, encode):
    chat = chat_for("chatml")
    transcript = chat.begin([USER]).sampled(encode(chat, "a<|im_end|>"))
    return chat, chat.append(transcript, [{"role": "user", "content": "second"}])


def planted(chat, transcript, text):
    """The transcript with its last fixed text replaced, ids and all."""
    ids = chat.vocabulary.encode(text)[0][1:]
    piece = replace(transcript.last, text=text, spans=(Span(origin=Origin.ENVIRONMENT, ids=tuple(ids)),))
    return replace(transcript, _piece=piece, num_tokens=transcript.parent.num_tokens + len(ids))


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("second", "Second", "non_assistant_text"),
        ("<|im_end|>\n<|im_start|>user", "<|im_end|><|im_start|>user", "non_assistant_text"),
        ("second<|im_end|>", "second<|im_start|>", "special_token_type"),
        ("second<|im_end|>", "second", "special_token_count"),
    ],
)
def test_a_planted_fault_is_hard_and_has_its_kind(grown, old, new, kind):
    chat, transcript = grown
    assert chat.verify(transcript).hard == 0
    report = chat.verify(planted(chat, transcript, transcript.last.text.replace(old, new, 1)))
    assert report.hard == 1
    assert report.counts[kind] == 1
    assert report.first.kind == kind


def test_a_lost_message_is_hard(grown):
    chat, transcript = grown
    messages = (*transcript.last.messages, {"role": "user", "content": "never tokenised"})
    lost = replace(transcript, _piece=replace(transcript.last, messages=messages))
    assert chat.verify(lost).hard == 1


def test_a_message_hidden_between_turns_is_hard(chat_for, encode):
    chat = chat_for("chatml")
    turn = chat.begin([USER]).sampled(encode(chat, "a<|im_end|>"))
    hidden = ({"role": "assistant", "content": "a"}, USER, {"role": "assistant", "content": "b"})
    smuggled = replace(turn, _piece=replace(turn.last, messages=hidden))
    report = chat.verify(smuggled)
    assert report.counts["special_token_count"] == 1


def test_ids_that_are_not_those_of_their_text_are_hard(grown):
    chat, transcript = grown
    spans = (*transcript.last.spans[:-1], replace(transcript.last.spans[-1], ids=transcript.last.spans[-1].ids[:-1]))
    report = chat.verify(replace(transcript, _piece=replace(transcript.last, spans=spans)))
    assert report.counts["non_assistant_text"] == 1


def test_a_turn_spelled_otherwise_than_its_message_is_soft(chat_for, encode):
    chat = chat_for("chatml")
    seen = {"role": "assistant", "content": "other"}
    report = chat.verify(chat.begin([USER]).sampled(encode(chat, "a<|im_end|>"), message=seen))
    assert (report.hard, report.soft) == (0, 1)
    assert report.first.kind == "assistant_text"
