"""Tool calls that a model may sample and JSON writers choke on: every dialect answers, and goes on from the answer."""

import pytest

HELLO = ("user", "hello there")
ODD = {
    "an integer of thirty digits": '{"at": 123456789012345678901234567890}',
    "half a character": '{"at": "\\ud800"}',
    "not a number": '{"at": NaN}',
    "infinite": '{"at": 1e999}',
    "a key twice": '{"at": "x", "at": "y"}',
    "deep": '{"at": ' + "[" * 300 + "]" * 300 + "}",
    "no object": "[1, 2]",
    "a text": '"{}"',
    "nothing": "null",
    "a number of another spelling": '{"at": 1.0, "of": 1e2}',
}


@pytest.mark.parametrize("given", list(ODD.values()), ids=list(ODD))
def test_an_odd_call_is_answered_and_comes_back_as_the_same_turn(bench, talk, Reply, speaker, given):
    call = f'<tool_call>\n{{"name": "look", "arguments": {given}}}\n</tool_call>'
    replies = iter([Reply(call), Reply(call), Reply("Well.")])
    _, url = bench.engine(lambda prompt, body: next(replies))
    session = talk(url)
    session.stream(speaker, [HELLO], tools=True)
    said = session.say(speaker, [HELLO], tools=True)
    ((identity, _, _),) = said.calls
    session.say(speaker, [HELLO, said, ("result", identity, "done")], tools=True)
    lost = speaker.name == "anthropic" and given in (ODD["an integer of thirty digits"], ODD["half a character"])
    # Where arguments travel as a JSON value, what JSON readers do not keep comes back as another history.
    assert session.state()["tree"] == {"0": None, "1": None, **({"2": None} if lost else {"1.0": "1"})}
