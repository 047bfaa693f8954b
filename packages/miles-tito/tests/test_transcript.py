"""The transcript: what was sampled stays bit for bit, and steps share what they have in common."""

import copy
import math
import pickle
import sys
import tracemalloc
from collections import Counter

import pytest

from miles_core.errors import RecordError, TokenError

USER = {"role": "user", "content": "hi"}


def test_ids_that_do_not_survive_decoding_are_kept_through_fifty_turns(chat_for):
    chat = chat_for("chatml")
    broken = (*chat.vocabulary.encode("é")[0][:1], *chat.vocabulary.encode("<|im_end|>")[0])
    transcript = chat.begin([USER])
    for _ in range(50):
        transcript = chat.append(transcript.sampled(broken), [USER])
    assert [span.ids for span in transcript.spans if span.origin == "sampled"] == [broken] * 50
    report = chat.verify(transcript)
    assert (report.hard, report.soft) == (0, 50)


def test_a_step_shares_every_earlier_piece_with_its_parent(chat_for, encode):
    chat = chat_for("chatml")
    transcript = chat.begin([USER])
    for _ in range(5):
        grown = chat.append(transcript.sampled(encode(chat, "a<|im_end|>")), [USER])
        assert all(old is new for old, new in zip(transcript.pieces(), grown.pieces(), strict=False))
        transcript = grown


def test_the_old_transcript_stays_valid_and_branches_are_independent(chat_for, encode):
    chat = chat_for("chatml")
    start = chat.begin([USER])
    left, right = start.sampled(encode(chat, "left")), start.sampled(encode(chat, "right"))
    assert start.num_turns == 0
    assert left.ids[: start.num_tokens] == right.ids[: start.num_tokens] == start.ids
    assert (left.messages[-1]["content"], right.messages[-1]["content"]) == ("left", "right")


def test_log_probabilities_and_versions_stand_where_their_ids_stand(chat_for, encode):
    chat = chat_for("chatml")
    ids = encode(chat, "ab")
    start = chat.begin([USER])
    turn = start.sampled(ids, logprobs=[-0.5, -2.0], weight_versions=(3, 4))
    assert turn.logprobs == (0.0,) * start.num_tokens + (-0.5, -2.0)
    assert turn.weight_versions == (-1,) * start.num_tokens + (3, 4)
    assert turn.complete
    whole = start.sampled(ids, logprobs=[-0.5, -2.0], weight_version=7)
    assert whole.weight_versions[-2:] == (7, 7)


def test_a_turn_without_log_probabilities_is_not_complete(chat_for, encode):
    chat = chat_for("chatml")
    turn = chat.begin([USER]).sampled(encode(chat, "ab"))
    assert not turn.complete
    assert turn.weight_versions[-1] == -1
    assert sum(turn.loss_mask) == 2


@pytest.mark.parametrize("logprobs", [[-0.5], [-0.5, math.nan], [-0.5, 0.5]])
def test_log_probabilities_must_be_one_for_each_id_and_finite_and_negative(chat_for, encode, logprobs):
    chat = chat_for("chatml")
    with pytest.raises(RecordError):
        chat.begin([USER]).sampled(encode(chat, "ab"), logprobs=logprobs, weight_version=1)


def test_a_negative_id_is_refused(chat_for):
    with pytest.raises(TokenError, match="at least 0"):
        chat_for("chatml").begin([USER]).sampled([5, -1])


def test_the_message_as_the_harness_saw_it_is_the_one_recorded(chat_for, encode):
    chat = chat_for("chatml")
    seen = {"role": "assistant", "content": "as seen"}
    assert chat.begin([USER]).sampled(encode(chat, "ab"), message=seen).messages[-1] == seen
    with pytest.raises(TokenError, match="assistant"):
        chat.begin([USER]).sampled(encode(chat, "ab"), message=USER)


def test_tool_call_ids_differ_between_turns_and_are_the_same_each_time(chat_for, encode):
    chat = chat_for("chatml")
    ids = encode(chat, '<tool_call>{"name": "look", "arguments": {}}</tool_call><|im_end|>')

    def two_turns():
        first = chat.begin([USER]).sampled(ids)
        second = chat.append(first, [USER]).sampled(ids)
        return [first.messages[-1]["tool_calls"][0]["id"], second.messages[-1]["tool_calls"][0]["id"]]

    assert two_turns() == two_turns()
    assert len(set(two_turns())) == 2


def test_a_thousand_turns_are_walked_without_recursion(chat_for, encode):
    chat = chat_for("chatml")
    transcript = chat.begin([USER])
    ids = encode(chat, "a<|im_end|>")
    for _ in range(1000):
        transcript = chat.append(transcript.sampled(ids), [USER])
    assert transcript.num_turns == 1000
    assert len(transcript.ids) == transcript.num_tokens == len(transcript.loss_mask)
    assert transcript.num_messages == len(transcript.messages) == 2001


def grown_by(chat, transcript, ids, turns):
    for number in range(turns):
        transcript = chat.append(transcript.sampled(ids), [{"role": "user", "content": f"go on {number}"}])
    return transcript


def calls_of(work):
    """How often each function is entered, Python's and C's."""
    entered = Counter()

    def count(frame, event, argument):
        if event in ("call", "c_call"):
            entered[getattr(argument, "__qualname__", frame.f_code.co_qualname)] += 1

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return entered


def test_a_step_does_the_same_work_however_long_the_history_is(chat_for, encode):
    chat = chat_for("chatml")
    ids = encode(chat, "a<|im_end|>")
    new = [{"role": "user", "content": "the same"}]
    short = grown_by(chat, chat.begin([USER]), ids, 10)
    long = grown_by(chat, short, ids, 990)
    at_ten, at_a_thousand = (
        calls_of(lambda at=at: chat.append(at.sampled(ids, message={"role": "assistant", "content": "a"}), new))
        for at in (short, long)
    )
    assert at_ten == at_a_thousand
    assert sum(at_ten.values()) < 2000


def test_memory_grows_with_what_is_new_and_branches_share_the_rest(chat_for, encode):
    chat = chat_for("chatml")
    ids = encode(chat, "a" * 99 + "<|im_end|>")
    logprobs = [-0.5] * len(ids)

    def grow(transcript, turns):
        for number in range(turns):
            turn = transcript.sampled(list(ids), logprobs=list(logprobs), weight_version=1)
            transcript = chat.append(turn, [{"role": "user", "content": f"{number:096d}"}])
        return transcript

    start = grow(chat.begin([USER]), 2)
    tracemalloc.start()
    try:
        whole = grow(start, 500)
        held, _ = tracemalloc.get_traced_memory()
        branches = [grow(whole, 1) for _ in range(50)]
        with_branches, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert whole.num_tokens > 100_000
    assert held / (whole.num_tokens - start.num_tokens) < 80
    assert (with_branches - held) / (50 * 225) < 120
    assert all(branch.parent.parent is whole for branch in branches)


def test_a_chain_of_five_thousand_turns_is_shown_copied_compared_and_freed(chat_for, encode):
    chat = chat_for("chatml")
    step = grown_by(chat, chat.begin([USER]), encode(chat, "a<|im_end|>"), 1)
    turn, answer = step.pieces()[1:]
    transcript = step
    for number in range(2, 5001):
        transcript = transcript._with(turn, awaits_turn=False, num_turns=number)._with(answer, awaits_turn=True)
    assert transcript.num_turns == 5000
    assert len(transcript.ids) == transcript.num_tokens
    assert len(repr(transcript)) < 300
    assert copy.copy(transcript) is transcript
    assert copy.deepcopy(transcript) is transcript
    assert transcript == transcript
    assert transcript in {transcript}
    del transcript


def test_a_transcript_is_not_pickled_by_accident(chat_for):
    with pytest.raises(TypeError, match="its tokenizer"):
        pickle.dumps(chat_for("chatml").begin([USER]))


def test_what_a_caller_does_to_a_message_later_changes_no_transcript(chat_for, encode):
    chat = chat_for("chatml")
    user, shown = (
        {"role": "user", "content": [{"type": "text", "text": "before"}]},
        {"role": "assistant", "content": "a"},
    )
    new, tools = {"role": "user", "content": "before"}, [{"type": "function", "function": {"name": "look"}}]
    transcript = chat.append(chat.begin([user], tools).sampled(encode(chat, "a<|im_end|>"), message=shown), [new])
    user["content"][0]["text"] = shown["content"] = new["content"] = tools[0]["function"]["name"] = "after"
    assert "after" not in repr((transcript.messages, transcript.tools))
    assert chat.verify(transcript).hard == 0
