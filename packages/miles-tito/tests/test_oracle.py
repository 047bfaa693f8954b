"""The oracle renders everything; an append that returns is what it says, and a refusal is one it understands."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .conversations import KINDS, Speaker
from .duel import Duel
from .traits import template_with

BEFORE = ("tool", "tools", "user", "tools+user", "tool+user")


def outcomes(duel, seed, kind=None):
    rng = random.Random(seed)
    speaker = Speaker(rng, reasoning=rng.random() < 0.7, edges=rng.random() < 0.3)
    tools = speaker.tools() if rng.random() < 0.7 else []
    start = speaker.start()
    before = [rng.choice(BEFORE) for _ in range(rng.choice((0, 0, 1, 2, 3)))]
    return duel.run(start, tools, speaker.steps([*before, kind or rng.choice(KINDS)]))


def test_on_a_sound_template_both_append_everything():
    duel = Duel(template_with())
    for kind in KINDS:
        for seed in range(5):
            found = outcomes(duel, seed, kind)
            assert [(o.finding.true, o.refusal) for o in found] == [(True, None)] * len(found)


@pytest.mark.parametrize("trait", ["trims", "tools before the last user"])
def test_a_trait(trait):
    duel = Duel(template_with([trait]))

    @given(seed=st.integers(0, 2**32))
    @settings(max_examples=10, deadline=None)
    def check(seed):
        for outcome in outcomes(duel, seed):
            assert outcome.verdict in ("agree", "doubtful"), outcome

    check()
