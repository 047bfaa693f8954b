"""The oracle tells right from wrong: what each trait breaks is worked out by hand, and wrong texts are seen."""

import random

import pytest

from .conversations import KINDS, Speaker, Step
from .oracle import Oracle, Refused, Rendering, phrases_of
from .traits import BREAKS, TRAITS, template_with

CONTROLS = [
    *("<|im_start|>", "<|im_end|>", "<|call|>", "<|return|>", "<|tool|>", "<tool_call>", "</tool_call>"),
    *("<tool_response>", "</tool_response>", "<think>", "</think>"),
]


def broken_kinds(source):
    oracle = Oracle(Rendering(source, controls=CONTROLS))
    found = set()
    for kind in KINDS:
        for seed, before in enumerate(((), (), (), ("tool", "tools+user"), ("user",) * 5, (kind,))):
            speaker = Speaker(random.Random(seed), phrases=["two\nlines", "long " * 10])
            walk = oracle.begin([{"role": "user", "content": speaker.given()}], speaker.tools())
            steps = speaker.steps([*before, kind])
            for place, step in enumerate(steps):
                finding = oracle.step(walk, step.turn, step.new)
                if finding.broken:
                    found |= {kind} if place == len(steps) - 1 else set()
                    break
                walk = finding.after
    return found


@pytest.mark.parametrize("trait", sorted(TRAITS))
def test_the_oracle_breaks_what_the_trait_breaks_by_hand(trait):
    assert broken_kinds(template_with([trait])) == BREAKS.get(trait, set())


TURN = {"role": "assistant", "content": "kwbawk"}
NEW = ({"role": "user", "content": "kwcawk"}, {"role": "user", "content": "kwdawk"})
PROMPT = "<|im_start|>user\nkwaawk<|im_end|>\n<|im_start|>assistant\n"
SUFFIX = "<|im_end|>\n<|im_start|>user\nkwcawk<|im_end|>\n<|im_start|>user\nkwdawk<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("prompt", "suffix", "right"),
    [
        (PROMPT, SUFFIX, True),
        (PROMPT, SUFFIX.replace("<|im_end|>\n", "<|im_end|>", 1), False),  # the newline after the stop is lost
        (PROMPT, "<|im_end|>" + SUFFIX, False),  # the stop stands there twice
        (PROMPT, SUFFIX.removeprefix("<|im_end|>\n<|im_start|>user\n"), False),  # it starts inside a message
        (PROMPT, SUFFIX.replace("kwcawk", "kwdawk"), False),
        (PROMPT, SUFFIX.removesuffix("<|im_start|>assistant\n"), False),
        (PROMPT.replace("user", "system"), SUFFIX, False),
        (PROMPT + "<think>\n", SUFFIX, True),  # what a prompt opens for the turn need not be there in history
    ],
)
def test_a_text_that_is_not_the_renders_is_seen(prompt, suffix, right):
    oracle = Oracle(Rendering(template_with(), controls=CONTROLS))
    finding = oracle.step(oracle.begin([{"role": "user", "content": "kwaawk"}]), TURN, NEW)
    assert finding.true
    assert (oracle.agrees(finding, [prompt, suffix], [TURN]) == "") is right


def test_the_turn_is_spelled_as_the_template_writes_it():
    oracle = Oracle(Rendering(template_with(["opens reasoning"]), controls=CONTROLS))
    turn = {**TURN, "reasoning_content": "kwbbwk"}
    walk = oracle.begin([{"role": "user", "content": "kwaawk"}])
    finding = oracle.step(walk, turn, NEW)
    assert oracle.spelled(walk, finding, ["<|im_end|>"]) == ("kwbbwk\n</think>\n\nkwbawk", "<|im_end|>")


def test_a_template_that_raises_refuses():
    oracle = Oracle(Rendering(template_with(["a user needed"]), controls=CONTROLS))
    with pytest.raises(Refused, match="no user message"):
        oracle.begin([{"role": "system", "content": "kwaawk"}])


def test_a_speaker_never_repeats_a_word_and_answers_every_call():
    speaker = Speaker(random.Random(1))
    steps: list[Step] = speaker.steps([*KINDS] * 3)
    words = [word for step in steps for message in (step.turn, *step.new) for word in words_in(message)]
    assert len(words) == len(set(words)) > 40
    for step in steps:
        answered = [message["tool_call_id"] for message in step.new if message["role"] == "tool"]
        assert answered == [call["id"] for call in step.turn.get("tool_calls") or ()]


def words_in(message):
    from .oracle import reasoning_of, words_of

    return [*words_of(message), *reasoning_of(message)]


def test_the_phrases_of_a_template_are_those_it_asks_for():
    source = "{% if '/no_think' in messages[0].content and m.role == 'user' %}{{ 'written' }}{% endif %}"
    assert phrases_of(source) == ["/no_think", "user"]
