"""The verifier: every cause of failure has a template, and the verdict is the one worked out by hand."""

import json

import pytest

from miles_core.errors import TokenError
from miles_tito.verify import KINDS, check_template
from miles_tito.verify.__main__ import main

ALL = set(KINDS)
UNSOUND = {
    "chatml": set(),
    "strips_reasoning": set(),
    "closes_tool_runs_once": set(),
    "moves_tools": {"user", "tools+user"},
    "drops_late_system": {"system"},
    "merges_system": {"system"},
    "drops_tool_calls": {"tool", "tools", "tools+user"},
    "drops_tool_results": {"tool", "tools", "tools+user"},
    "last_turn_ends_otherwise": set(),
    "opener_is_stop": set(),
    "numbers_calls": set(),
    "clock": set(),
    "insists_on_a_user": {"system"},
    "arguments_as_string": set(),
    "trims": set(),
    "no_stop": ALL,
    "repeats_tools_with_system": set(),
    "one_call_only": {"tools", "tools+user"},
    "loses_an_empty_turn": {"user"},
}


@pytest.mark.parametrize("name", sorted(UNSOUND))
def test_each_kind_gets_the_verdict_worked_out_by_hand(template_file, name):
    report = check_template(template_file(name))
    assert {verdict.kind for verdict in report.verdicts if not verdict.sound} == UNSOUND[name]
    assert all(verdict.tried for verdict in report.verdicts)
    assert report.sound is (not UNSOUND[name] & {"tool", "tools", "user", "tools+user"})
    for verdict in report.verdicts:
        assert all(failure.reason for failure in verdict.failures)


def test_a_failure_names_the_conversation_the_place_and_a_cure(template_file):
    failure = check_template(template_file("moves_tools")).verdict("user").failures[0]
    assert "tool" in failure.shape
    assert "TOOLS" in failure.divergence.found
    assert failure.cure


def test_the_argument_that_keeps_reasoning_is_found(template_file):
    report = check_template(template_file("strips_reasoning"))
    assert report.facts["reasoning_kept"] == {"preserve_thinking": True}
    kept = check_template(template_file("strips_reasoning"), template_kwargs={"preserve_thinking": True})
    assert kept.facts["reasoning_kept"] == {}


def test_a_clock_is_noted(template_file):
    assert any("clock" in finding.what for finding in check_template(template_file("clock")).findings)


def test_required_kinds_decide_what_is_an_error(template_file):
    path = template_file("drops_late_system")
    assert check_template(path).sound
    assert not check_template(path, required=["system"]).sound
    with pytest.raises(TokenError, match="kinds among"):
        check_template(path, required=["sytem"])


def test_without_tools_only_dialogues_are_checked(template_file):
    report = check_template(template_file("drops_tool_calls"), tools=False)
    assert {verdict.kind for verdict in report.verdicts} == {"user", "system", "assistant"}
    assert report.sound


def test_a_folder_with_a_real_vocabulary_is_checked_too(tokenizers_folder):
    assert check_template(tokenizers_folder / "qwen3", thinking=False).sound


@pytest.mark.parametrize(("name", "code"), [("chatml", 0), ("moves_tools", 1), ("nothing", 2)])
def test_the_exit_code_says_sound_not_sound_or_not_usable(template_file, capsys, name, code):
    assert main([str(template_file(name)), "--thinking", "off"]) == code
    printed = capsys.readouterr()
    assert (printed.err if code == 2 else printed.out).strip()


def test_json_holds_the_verdicts(template_file, capsys):
    main([str(template_file("moves_tools")), "--format", "json", "--thinking", "off"])
    found = json.loads(capsys.readouterr().out)
    assert found["sound"] is False
    user = next(verdict for verdict in found["verdicts"] if verdict["kind"] == "user")
    assert (user["sound"], user["severity"]) == (False, "error")
    assert user["failures"][0]["divergence"]["found"].startswith("TOOLS]")


def test_text_shows_the_divergence(template_file):
    text = check_template(template_file("moves_tools"), thinking=False).to_text()
    assert "NOT SOUND" in text
    assert "render 'INST]user" in text
    assert "append 'TOOLS]" in text
