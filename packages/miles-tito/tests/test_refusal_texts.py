"""What a refusal says, and that it says so in another process, too."""

import pickle

import pytest

from miles_tito import Divergence, NotExtendable

USER = {"role": "user", "content": "hi"}


def test_a_refusal_survives_pickling_and_reads_as_sentences(chat_for, encode):
    chat = chat_for("drops_late_system")
    with pytest.raises(NotExtendable) as caught:
        chat.append(chat.begin([USER]).sampled(encode(chat, "a<|end|>")), [{"role": "system", "content": "s"}])
    error, again = caught.value, pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(error)
    assert (again.role, again.divergence, again.help, again.reason) == (
        "system",
        error.divergence,
        error.help,
        error.reason,
    )
    assert f"{error.reason}. After {error.divergence.before!r}: expected 's', found" in str(error)
    assert f". {error.help}" in str(error)


def test_a_refusal_says_nothing_twice_and_names_no_empty_place():
    said = "the chat template refuses this conversation: no late system message"
    place = Divergence(offset=0, before="", expected="be nice", found=said)
    twice = NotExtendable("no late system message", role="system", divergence=place, help="Use another role.")
    assert str(twice) == "cannot append a system message: no late system message. Use another role."
    lost = Divergence(offset=7, before="", expected="be nice", found="")
    assert str(NotExtendable("the template drops it", role="system", divergence=lost)) == (
        "cannot append a system message: the template drops it. Expected 'be nice', found nothing."
    )
