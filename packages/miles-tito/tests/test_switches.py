"""Arguments that are tried: conditions take True and False, what becomes text takes neither, pairs come last."""

import pytest

from miles_tito.profile import derive_profile
from miles_tito.render import ChatTemplate
from miles_tito.switches import keepers, switches
from miles_tito.verify.vocabulary import default_vocabulary

TURNS = """{% for m in messages %}{{ '<|' + m.role + '|>' }}REASON{{ m.content + '<|end|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""


def tried(source: str) -> list[dict[str, object]]:
    return list(switches(ChatTemplate(source)))


@pytest.mark.parametrize(
    "source",
    [
        "{% if loud %}!{% endif %}",
        "{% if not loud %}!{% endif %}",
        "{{ '!' if loud else '?' }}",
        "{% if messages and loud %}!{% endif %}",
        "{% if loud is defined and loud is true %}!{% endif %}",
        "{% if loud == false %}!{% endif %}",
        "{% set high = loud | default(true) %}{% if high %}!{% endif %}",
        "{% set high = loud or messages %}{% if high %}!{% endif %}",
        "{% for m in messages if loud %}!{% endfor %}",
        "{% if not loud is defined %}{% set loud = true %}{% endif %}{% if loud %}!{% endif %}",
    ],
)
def test_a_name_that_is_only_asked_about_is_tried_with_both_truth_values(source):
    assert tried(source) == [{"loud": True}, {"loud": False}]


@pytest.mark.parametrize(
    "source",
    [
        "{{ motto }}",
        "{% if motto %}{{ motto + '!' }}{% endif %}",
        "{% if motto %}{{ motto ~ '!' }}{% endif %}",
        "{% if motto %}{{ motto | trim }}{% endif %}",
        "{% if motto %}{{ motto.strip() }}{% endif %}",
        "{% if motto and motto[0] == 'x' %}!{% endif %}",
        "{% if motto is defined and motto == 'high' %}!{% endif %}",
        "{% if motto is defined and motto is string %}!{% endif %}",
        "{% if motto %}{% for word in motto %}!{% endfor %}{% endif %}",
        "{% set line = motto or 'none' %}{{ line }}",
        "{% set line = motto | default('none') %}{% if line %}!{% endif %}",
        "{% if motto is defined %}{% set a = motto %}{% set b = a %}{% endif %}{{ b }}",
        "{% if motto %}{{ 'so' if messages else motto }}{% endif %}",
        "{% if motto %}{% set line = '> ' + motto %}{% endif %}",
    ],
)
def test_a_name_that_becomes_text_is_no_switch(source):
    assert not [arguments for arguments in tried(source) if "motto" in arguments]


def test_what_is_set_already_is_not_tried_again():
    template = ChatTemplate("{% if loud %}!{% endif %}", kwargs={"loud": True})
    assert list(switches(template)) == [{"loud": False}]


REASONS_WHEN_ON = (
    "{% if thinking and not (drop_thinking | default(true)) and m.reasoning_content %}"
    "{{ m.reasoning_content }}{% endif %}"
)


def kept_by(reason: str) -> dict[str, object] | None:
    template = ChatTemplate(TURNS.replace("REASON", reason))
    vocabulary = default_vocabulary(template)
    profile, _ = derive_profile(template.with_special_tokens(vocabulary.special_tokens), vocabulary)
    return None if profile.reasoning_kept is None else dict(profile.reasoning_kept)


def test_where_no_argument_keeps_reasoning_alone_the_profile_holds_the_pair_that_does():
    assert kept_by(REASONS_WHEN_ON) == {"drop_thinking": False, "thinking": True}
    assert kept_by(REASONS_WHEN_ON.replace("thinking and", "enable_thinking and")) == {
        "drop_thinking": False,
        "enable_thinking": True,
    }
    assert kept_by("") is None


def test_one_argument_is_preferred_to_two_and_pairs_are_of_names_that_the_template_reads():
    assert kept_by("{% if not (drop_thinking | default(true)) %}{{ m.reasoning_content }}{% endif %}") == {
        "drop_thinking": False
    }
    pairs = [one for one in keepers(ChatTemplate(TURNS.replace("REASON", REASONS_WHEN_ON))) if len(one) > 1]
    assert pairs == [{"drop_thinking": False, "thinking": True}]


@pytest.mark.shared
def test_the_custom_instructions_of_a_real_template_are_a_text(corpus):
    files = {path.stem: path for path in corpus}
    if "smollm3" not in files:
        pytest.skip("no template smollm3 in the corpus")
    template = ChatTemplate(files["smollm3"].read_text())
    assert "custom_instructions" in template.reads
    assert list(switches(template)) == [{"enable_thinking": True}, {"enable_thinking": False}]
