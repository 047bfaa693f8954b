"""Product and oracle agree on templates made of faults: no wrong ids, no refusal without a cause."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .conversations import KINDS, Speaker
from .duel import Duel
from .oracle import phrases_of
from .traits import TRAITS, template_with

BEFORE = ("tool", "tools", "user", "tools+user", "tool+user", "user+assistant+user")


def outcomes(duel, rng, *, phrases=()):
    """One random conversation: up to three appends of any kind and then one of a kind of its own."""
    speaker = Speaker(rng, reasoning=rng.random() < 0.7, edges=rng.random() < 0.2, phrases=phrases)
    tools = speaker.tools() if rng.random() < 0.7 else []
    start = speaker.start()
    before = [rng.choice(BEFORE) for _ in range(rng.choice((0, 0, 1, 2, 3)))]
    return duel.run(start, tools, speaker.steps([*before, rng.choice(KINDS)]))


CLOSES = "a word in the system prompt opens the turn"
"""Its prompt ends the reasoning before it begins; after that a turn that reasons all the same may be refused."""


def check(traits, seeds):
    source = template_with(traits)
    duel, phrases = Duel(source), phrases_of(source)
    accepted = {"agree", "doubtful"} | ({"refused but true"} if CLOSES in traits else set())
    for seed in seeds:
        for outcome in outcomes(duel, random.Random(f"{seed}"), phrases=phrases):
            assert outcome.verdict in accepted, f"{traits}, seed {seed}: {outcome}"


def test_a_sound_template_refuses_nothing():
    duel = Duel(template_with())
    found = [outcome for seed in range(40) for outcome in outcomes(duel, random.Random(seed))]
    assert len(found) > 60
    assert all(outcome.finding.true and outcome.refusal is None for outcome in found)


@pytest.mark.parametrize("trait", sorted(TRAITS))
def test_each_trait_alone(trait):
    check([trait], range(2))


@pytest.mark.slow
@pytest.mark.parametrize("trait", sorted(TRAITS))
def test_each_trait_alone_at_length(trait):
    check([trait], range(100, 116))


@given(
    traits=st.lists(st.sampled_from(sorted(TRAITS)), min_size=2, max_size=3, unique=True), seed=st.integers(0, 2**32)
)
@settings(max_examples=12, deadline=None)
def test_mixtures(traits, seed):
    check(traits, [seed, seed + 1])


@pytest.mark.slow
@given(
    traits=st.lists(st.sampled_from(sorted(TRAITS)), min_size=1, max_size=4, unique=True), seed=st.integers(0, 2**32)
)
@settings(max_examples=400, deadline=None)
def test_many_mixtures(traits, seed):
    check(traits, range(seed, seed + 6))
