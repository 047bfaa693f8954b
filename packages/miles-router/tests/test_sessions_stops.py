"""Stop texts: cut from the message, kept in the tokens, never seen in a stream."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_core.sample import Finish
from miles_router.sessions.stops import StopFilter, cut_message

USER = {"role": "user", "content": "hello"}


def joined(deltas) -> dict:
    message = {"content": "", "reasoning_content": ""}
    for delta in deltas:
        for name in message:
            message[name] += delta.get(name) or ""
    return message


TEXT = st.text("abS \n", max_size=12)


@settings(max_examples=200, deadline=None)
@given(TEXT, st.sampled_from(["SS", "ab", "\n\n", "S"]), TEXT, TEXT, st.data())
def test_the_stream_spells_the_cut_message_however_it_is_chopped(reasoning, stop, content, beyond, data):
    whole = {"reasoning_content": reasoning.replace(stop, ""), "content": content.replace(stop, "") + stop + beyond}
    pieces = []
    for name, text in whole.items():
        while text:
            size = data.draw(st.integers(1, 4))
            pieces.append({name: text[:size]})
            text = text[size:]
    whole = joined(pieces)
    stops = StopFilter([stop, "never seen"])
    deltas = list(itertools.chain.from_iterable(stops.feed([piece]) for piece in pieces))
    for end in range(len(deltas) + 1):
        assert stop not in joined(deltas[:end])["content"]
    deltas += stops.finish(stopped=True)
    expected = cut_message({"role": "assistant", **whole}, stop)
    assert joined(deltas) == {name: expected[name] for name in ("content", "reasoning_content")}


@settings(max_examples=100, deadline=None)
@given(st.lists(TEXT, max_size=6))
def test_without_the_engines_word_nothing_is_left_out(texts):
    stops = StopFilter(["ab", "S S"])
    deltas = list(itertools.chain.from_iterable(stops.feed([{"content": text}]) for text in texts if text))
    assert joined([*deltas, *stops.finish(stopped=False)])["content"] == "".join(texts)


def test_a_text_that_began_a_stop_is_told_before_the_call_that_follows_it():
    stops = StopFilter(["END"])
    call = {"tool_calls": [{"index": 0}]}
    assert stops.feed([{"content": "xE"}]) == [{"content": "x"}]
    assert stops.feed([call]) == [{"content": "E"}, call]


@pytest.mark.parametrize("stream", [False, True])
def test_the_engine_is_given_the_stops_and_the_turn_goes_on_after_one(bench, caller, Reply, chat, stream):
    ids = chat.vocabulary.encode("the answer\nEND of")[0]
    replies = iter([Reply(ids=list(ids), meta={"finish_reason": {"type": "stop", "matched": "END"}}), Reply("more")])
    engine, url = bench.engine(lambda prompt, body: next(replies))
    client = caller(url)
    session = client.create()
    if stream:
        # The script's finish reason stands in every event; a stream has one at its end alone.
        body = {"messages": [USER], "stop": ["END", "STOP"], "stream": True}
        answer = client.http.post(f"/sessions/{session}/v1/chat/completions", json=body)
        events = [json.loads(line[6:]) for line in answer.text.split("\n") if line.startswith("data: {")]
        text = "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])
        finish = next(e["choices"][0]["finish_reason"] for e in events if e["choices"][0]["finish_reason"])
    else:
        answer = client.ask(session, [USER], stop=["END", "STOP"]).json()["choices"][0]
        text, finish = answer["message"]["content"], answer["finish_reason"]
    assert (text, finish) == ("the answer\n", "stop")
    assert engine.calls[0]["sampling_params"]["stop"] == ["END", "STOP"]
    client.say(session, [USER, {"role": "assistant", "content": "the answer\n"}, USER])
    (sample,) = client.samples(session)
    # All that was sampled is trained, and the end of turn that was not is there, masked.
    assert chat.vocabulary.decode(sample.ids[sample.loss_mask].tolist()) == "the answer\nEND ofmore<|im_end|>"
    assert "END of<|im_end|>\n<|im_start|>user" in chat.vocabulary.decode(sample.ids.tolist())
    assert sample.finish is Finish.STOP
    assert sample.metadata["turns"] == 2
    assert sample.metadata["tito"]["hard"] == 0


@pytest.mark.parametrize("stop", [5, [""], ["a", 3], [["a"]], ["x"] * 17])
def test_stops_that_are_no_texts_are_refused(bench, caller, stop):
    _, url = bench.engine()
    client = caller(url)
    answer = client.ask(client.create(), [USER], stop=stop)
    assert answer.status_code == 400
    assert "stop" in answer.json()["error"]["message"]
