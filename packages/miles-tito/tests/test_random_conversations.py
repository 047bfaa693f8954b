"""Whatever the conversation, an append equals the whole render outside sampled text, or is refused with a cause."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_tito import ChatTokenizer, NotExtendable, TemplateError
from miles_tito.render import ChatTemplate
from miles_tito.verify.shapes import TOOLS
from miles_tito.verify.turns import turn_ids
from miles_tito.verify.vocabulary import default_vocabulary

WORDS = ["word", " two ", "\n", "", "é🤖", '{"a": 1}', "<|im_end|>", "<|end|>", "<|user|>", "</think>", "[INST]", "0"]
NAMES = [
    "chatml", "strips_reasoning", "closes_tool_runs_once", "moves_tools", "drops_late_system", "merges_system",
    "drops_tool_calls", "last_turn_ends_otherwise", "opener_is_stop", "numbers_calls", "clock", "insists_on_a_user",
    "arguments_as_string", "trims", "repeats_tools_with_system", "one_call_only", "loses_an_empty_turn",
]  # fmt: skip


def text(rng):
    return "".join(rng.choice(WORDS) for _ in range(rng.randint(0, 4)))


def turn(rng):
    message = {"role": "assistant", "content": text(rng)}
    if rng.random() < 0.4:
        message["reasoning_content"] = f"so {text(rng)}"
    if rng.random() < 0.6:
        message["tool_calls"] = [
            {"id": f"call{rng.randint(10000, 99999)}", "type": "function"}
            | {"function": {"name": "look_up", "arguments": '{"word": "w", "limit": 2}'}}
            for _ in range(rng.randint(1, 3))
        ]
    return message


def answers(rng, message):
    new = [{"role": "tool", "tool_call_id": c["id"], "content": text(rng)} for c in message.get("tool_calls") or ()]
    if not new or rng.random() < 0.2:
        new.append({"role": rng.choice(["user", "user", "user", "system"]), "content": f"u{text(rng)}"})
    if rng.random() < 0.1:
        new += [{"role": "assistant", "content": "shot"}, {"role": "user", "content": "next"}]
    return new


def sampled_ids(chat, transcript, message, rng):
    """What a policy might sample: the template's own spelling, or that with noise, or no stop, or another stop."""
    ids = turn_ids(chat, transcript, message)
    style = rng.random()
    if style < 0.2:
        return ids[:-1]
    if style < 0.4:
        plain = [n for n in range(200) if n not in chat.stop_token_ids]
        return [*ids[:-1], *rng.choices(plain, k=3), *ids[-1:]]
    if style < 0.5 and len(chat.stop_token_ids) > 1:
        return [*ids[:-1], rng.choice(chat.stop_token_ids)]
    return ids


def converse(chat, rng, turns=4):
    """Appends made and refused in one random conversation; asserts that every one made is right."""
    start = [{"role": "user", "content": f"q{text(rng)}"}]
    if rng.random() < 0.3:
        start.insert(0, {"role": "system", "content": "rules"})
    try:
        transcript = chat.begin(start, TOOLS if rng.random() < 0.7 else None)
    except TemplateError:
        return 0, 0
    made, refusal = 0, None
    for _ in range(turns):
        message = turn(rng)
        done = transcript.sampled(sampled_ids(chat, transcript, message, rng), message=message)
        before = done.ids
        try:
            transcript = chat.append(done, answers(rng, message))
        except NotExtendable as error:
            refusal = error
            break
        report = chat.verify(transcript)
        assert report.hard == 0, report.first
        kept = len(before) - (transcript.parent.last.dropped is not None)
        assert transcript.ids[:kept] == before[:kept]
        made += 1
    if refusal is not None:
        assert refusal.divergence or "template" in refusal.reason
    return made, int(refusal is not None)


@pytest.mark.parametrize("name", NAMES)
def test_small_templates(chat_for, name):
    @given(seed=st.integers(0, 2**32))
    @settings(max_examples=25, deadline=None)
    def check(seed):
        converse(chat_for(name), random.Random(seed))

    check()


def test_a_sound_template_refuses_nothing(chat_for):
    outcomes = [converse(chat_for("chatml"), random.Random(seed)) for seed in range(40)]
    assert sum(refused for _, refused in outcomes) == 0
    assert sum(made for made, _ in outcomes) == 160


@pytest.mark.slow
@pytest.mark.shared
def test_no_derived_suffix_is_wrong_over_the_corpus(corpus):
    made = refused = 0
    for path in corpus:
        template = ChatTemplate(path.read_bytes().decode("utf-8"))
        vocabulary = default_vocabulary(template)
        chat = ChatTokenizer(template.with_special_tokens(vocabulary.special_tokens), vocabulary)
        for seed in range(30):
            a, b = converse(chat, random.Random(f"{path.name}{seed}"))
            made, refused = made + a, refused + b
    print(f"\n{len(corpus)} templates: {made} appends equal the whole render, {refused} conversations end in a refusal")
    assert made > 20 * len(corpus)
