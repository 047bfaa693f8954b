"""No false "sound": what the verifier calls sound, the oracle cannot break."""

import random

import pytest

from miles_tito.verify import check_template

from .conversations import KINDS
from .duel import Duel
from .oracle import phrases_of
from .test_oracle_traits import outcomes
from .traits import BREAKS, template_with

RARE = {
    "stop depends on the length": "only from the tenth message on",
    "content cut to forty characters": "only where a text is long",
    "content cut to its first line": "only where a text has several lines",
}


def sound_kinds(path):
    return {verdict.kind for verdict in check_template(path).verdicts if verdict.sound}


def broken_kinds(source, conversations):
    """Kinds that some random conversation breaks after steps that break nothing."""
    duel, phrases = Duel(source), phrases_of(source)
    found = {
        outcome.step.kind
        for seed in range(conversations)
        for outcome in outcomes(duel, random.Random(f"verdict {seed}"), phrases=phrases)
        if outcome.finding.broken
    }
    return found & set(KINDS)


def verdicts_of(tmp_path, traits):
    path = tmp_path / "template.jinja"
    path.write_text(template_with(traits))
    return sound_kinds(path)


@pytest.mark.parametrize("trait", ["calls dropped", "counts messages at the start", "only the last twelve messages"])
def test_a_fault_is_never_called_sound(tmp_path, trait):
    assert not verdicts_of(tmp_path, [trait]) & BREAKS[trait]


@pytest.mark.slow
@pytest.mark.parametrize("trait", sorted(BREAKS))
def test_no_fault_is_ever_called_sound(tmp_path, trait):
    assert not verdicts_of(tmp_path, [trait]) & BREAKS[trait]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_no_mixture_that_the_oracle_breaks_is_called_sound(tmp_path, seed):
    traits = random.Random(seed).sample(sorted(set(BREAKS) - set(RARE)), 2)
    broken = broken_kinds(template_with(traits), 20)
    assert broken
    assert not verdicts_of(tmp_path, traits) & broken


@pytest.mark.slow
@pytest.mark.shared
def test_no_template_of_the_corpus_that_the_oracle_breaks_is_called_sound(corpus):
    for path in corpus:
        assert not sound_kinds(path) & broken_kinds(path.read_bytes().decode("utf-8"), 20), path.name
