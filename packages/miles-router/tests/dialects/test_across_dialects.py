"""A session may go on in another dialect: the tree compares meanings, so every mixture is one trajectory."""

import itertools

import pytest

HELLO = ("user", "hello there")
ORDERS = list(itertools.permutations(("openai_chat", "openai_responses", "anthropic"), 2))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_a_conversation_goes_on_in_another_dialect(bench, thinking, talk, Reply, SPEAKERS, CALL_TEXT, order, stream):
    replies = iter([Reply("<think>\nWhere?\n</think>\n\n" + CALL_TEXT), Reply("It is fine."), Reply("Goodbye.")])
    engine, url = bench.engine(lambda prompt, body: next(replies))
    session = talk(url)
    ask = session.stream if stream else session.say
    one, two = (SPEAKERS[name] for name in order)
    history = [("system", "Be brief."), HELLO]
    first = ask(one, history, tools=True)
    history += [first, ("result", first.calls[0][0], "sunny")]
    second = ask(two, history, tools=True)
    history += [second, ("user", "bye")]
    assert ask(one, history, tools=True).text == "Goodbye."
    state = session.state()
    assert state["tree"] == {"0": None, "0.0": "0", "0.0.0": "0.0"}
    assert [turn["extends"] for turn in state["turns"]] == [False, True, True]
    assert [turn["dialect"] for turn in state["turns"]] == [order[0], order[1], order[0]]
    assert state["mismatch"]["0.0.0"]["hard"] == 0
    asked = [call["input_ids"] for call in engine.calls]
    assert all(later[: len(earlier)] == earlier for earlier, later in itertools.pairwise(asked))


def test_equal_conversations_are_the_same_prompt_in_every_dialect(bench, talk, SPEAKERS):
    engine, url = bench.engine()
    for speaker in SPEAKERS.values():
        talk(url).say(speaker, [("system", "Be brief."), HELLO], tools=True)
    one, two, three = (call["input_ids"] for call in engine.calls)
    assert one == two == three
