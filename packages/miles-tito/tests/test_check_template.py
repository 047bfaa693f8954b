"""The verifier: every cause of failure has a template, and the verdict is the one worked out by hand."""

import pytest

from miles_core.errors import TokenError
from miles_tito.verify import KINDS, RULES, check_template

ALL = set(KINDS)
WITH_TOOLS = {"tool", "tools", "tools+user", "tools+system", "tools+assistant"}
LATE_SYSTEM = {"system", "tools+system", "system+user"}
USER = {"user", "tools+user", "system+user"}
MOVES, LOST = "moves", "is lost"
UNSOUND = {  # template: kinds that are not sound, the rule and the words that name the cause
    "chatml": (set(), "", ""),
    "strips_reasoning": (set(), "", ""),
    "strips_reasoning_of_earlier_turns": (set(), "", ""),
    "closes_tool_runs_once": (set(), "", ""),
    "moves_tools": (USER | {"assistant"}, "strict-prefix", "the tools block"),
    "moves_tools_unless_told": (USER | {"assistant"}, "strict-prefix", "the tools block"),
    "moves_system": (USER | {"assistant"}, "strict-prefix", "the system message"),
    "drops_late_system": (LATE_SYSTEM, "content-loss", LOST),
    "merges_system": (LATE_SYSTEM, "content-order", "is moved before"),
    "drops_tool_calls": (WITH_TOOLS, "content-loss", "the tool call"),
    "drops_tool_results": (WITH_TOOLS, "content-loss", "the tool result"),
    "cuts_long_texts": (ALL - {"tools+assistant", "system+user"}, "content-loss", LOST),
    "forgets_the_oldest": (ALL, "content-loss", "disappears when messages are added"),
    "loses_an_empty_turn": ({"user"}, "strict-prefix", "the generation prompt"),
    "last_turn_ends_otherwise": (set(), "", ""),
    "marks_the_last_message": (ALL, "strict-prefix", "the last message before a turn is written otherwise"),
    "prompt_opens_what_history_closes": (set(), "", ""),
    "prompt_opens_another_turn": (ALL, "strict-prefix", "the generation prompt"),
    "repeats_the_question": (ALL, "strict-prefix", "the generation prompt"),
    "numbers_calls": (set(), "", ""),
    "prints_call_ids": (set(), "", ""),
    "clock": (set(), "", ""),
    "trims": (set(), "", ""),
    "insists_on_a_user": (LATE_SYSTEM, "template-raises", "the system message must come first"),
    "one_call_only": (
        {"tools", "tools+user", "tools+system", "tools+assistant"},
        "template-raises",
        "one tool call at a time",
    ),
    "arguments_as_string": (set(), "", ""),
    "iterates_arguments": (set(), "", ""),
    "prints_null_and_parts": (set(), "", ""),
    "loses_parts": (set(), "", ""),
    "moves_text_beside_calls": (set(), "", ""),
    "drops_text_beside_calls": (set(), "", ""),
    "repeats_tools_with_system": (set(), "", ""),
}
THINK = {"chatml", "strips_reasoning", "strips_reasoning_of_earlier_turns"}
"""Templates checked with reasoning too: the others are blind to it, and half the conversations do."""
REQUIRED = {"tool", "tools", "user", "tools+user"}


@pytest.fixture(scope="module")
def report_on(template_file):
    """The report on one of the small templates, made once."""
    made = {}

    def check(name):
        if name not in made:
            made[name] = check_template(template_file(name), thinking=None if name in THINK else False)
        return made[name]

    return check


@pytest.mark.parametrize("name", sorted(UNSOUND))
def test_each_kind_gets_the_verdict_worked_out_by_hand_and_its_cause(report_on, name):
    kinds, rule, words = UNSOUND[name]
    report = report_on(name)
    assert {verdict.kind for verdict in report.verdicts if not verdict.sound} == kinds
    assert all(verdict.tried for verdict in report.verdicts)
    assert report.sound is (not kinds & REQUIRED)
    for verdict in report.verdicts:
        named = [failure for failure in verdict.failures if failure.rule != "not-proved"]
        assert verdict.failures[:1] == tuple(named[:1])
        assert all((failure.rule, words in failure.reason) == (rule, True) for failure in named), named
        assert all(failure.cure for failure in verdict.failures)


def test_without_a_stop_every_kind_fails_because_turns_have_no_end(report_on):
    report = report_on("no_stop")
    assert {verdict.kind for verdict in report.verdicts if not verdict.sound} == ALL
    assert {failure.rule for failure in report.verdict("user").failures} == {"end-of-turn"}


def test_a_failure_names_the_conversation_shows_the_place_and_a_cure(report_on):
    failure = report_on("moves_tools").verdict("user").failures[0]
    assert "with tools" in failure.shape
    assert [line[:2] for line in failure.diff] == ["- ", "+ "]
    assert failure.diff[0].startswith("- ⟦[INST]⟧user Please")
    assert failure.diff[1].startswith("+ ⟦[TOOLS]⟧[{")
    assert failure.cure


def test_a_kind_that_an_argument_mends_names_it(report_on, template_file):
    verdict = report_on("moves_tools_unless_told").verdict("user")
    assert verdict.argument == {"tools_stay": True}
    assert "'tools_stay': True" in verdict.cure
    told = check_template(
        template_file("moves_tools_unless_told"), template_kwargs={"tools_stay": True}, thinking=False
    )
    assert told.sound


@pytest.mark.parametrize(
    ("name", "when", "argument"),
    [
        ("strips_reasoning", "after the next user message", {"preserve_thinking": True}),
        ("strips_reasoning_of_earlier_turns", "after the next turn", {"drop_thinking": False}),
    ],
)
def test_when_reasoning_is_dropped_and_the_argument_that_keeps_it(report_on, template_file, name, when, argument):
    (finding,) = report_on(name).of_rule("reasoning-retention")
    assert (finding.severity, when in finding.what, str(argument) in finding.cure) == ("warning", True, True)
    kept = check_template(template_file(name), template_kwargs=argument, thinking=True)
    assert kept.of_rule("reasoning-retention") == ()


def test_a_template_without_a_place_for_reasoning_is_only_noted(report_on):
    (finding,) = report_on("chatml").of_rule("reasoning-retention")
    assert (finding.severity, "never renders" in finding.what) == ("note", True)


@pytest.mark.parametrize(
    ("name", "severity", "written"),
    [
        ("prompt_opens_what_history_closes", "note", "<think>"),
        ("opener_is_stop", "note", "<think>"),
        ("prompt_opens_another_turn", "error", "<|bot|>"),
        ("repeats_the_question", "error", "<|note|>"),
    ],
)
def test_a_generation_prompt_that_history_does_not_show(report_on, name, severity, written):
    found = report_on(name).of_rule("generation-prompt")
    assert found
    assert all(finding.severity == severity and written in finding.what for finding in found)


@pytest.mark.parametrize("name", ["chatml", "trims", "clock", "numbers_calls"])
def test_a_generation_prompt_that_history_shows_is_no_finding(report_on, name):
    assert report_on(name).of_rule("generation-prompt") == ()


@pytest.mark.parametrize(
    ("name", "outcomes"),
    [
        ("chatml", {"parts": "is refused", "JSON": "is encoded twice", "null": "is refused"}),
        ("iterates_arguments", {"parts": "is refused", "JSON": "is refused", "null": "is refused"}),
        (
            "prints_null_and_parts",
            {"parts": "is printed as Python", "object": "is printed as Python", "null": 'is printed as "None"'},
        ),
        ("loses_parts", {"parts": "is lost", "JSON": "is encoded twice"}),
        ("arguments_as_string", {"parts": "is refused", "object": "is refused", "null": "is refused"}),
    ],
)
def test_what_a_template_makes_of_forms_that_nobody_normalised(report_on, name, outcomes):
    found = [finding.what for finding in report_on(name).of_rule("content-forms")]
    assert len(found) == len(outcomes)
    for form, outcome in outcomes.items():
        assert any(form in what and outcome in what for what in found), (form, found)


@pytest.mark.parametrize(
    ("name", "words"), [("moves_text_beside_calls", "behind the call"), ("drops_text_beside_calls", "dropped")]
)
def test_text_beside_a_call_that_moves_or_is_dropped_is_a_warning(report_on, name, words):
    (finding,) = report_on(name).of_rule("text-beside-calls")
    assert (finding.severity, words in finding.what) == ("warning", True)
    assert report_on("chatml").of_rule("text-beside-calls") == ()


def test_results_that_share_a_turn_are_told_apart_from_results_that_do_not(report_on):
    (finding,) = report_on("closes_tool_runs_once").of_rule("tool-grouping")
    assert finding.severity == "note"
    assert any("[/RESULTS]" in line for line in finding.diff)
    assert report_on("trims").of_rule("tool-grouping") == ()


def test_a_clock_is_noted_where_it_is_printed(report_on):
    (finding,) = report_on("clock").of_rule("clock")
    assert finding.severity == "note"
    assert report_on("chatml").of_rule("clock") == ()


def test_a_suffix_that_counts_over_the_history_is_noted(report_on):
    found = report_on("numbers_calls").of_rule("suffix-equality")
    assert any("of tool is written otherwise" in finding.what and finding.diff for finding in found)
    assert report_on("chatml").of_rule("suffix-equality") == ()


def test_calls_that_no_parser_reads_are_a_warning(report_on):
    (finding,) = report_on("trims").of_rule("call-round-trip")
    assert finding.severity == "warning"
    assert report_on("chatml").of_rule("call-round-trip") == ()


def test_required_kinds_and_roles_decide_what_is_an_error(template_file):
    path, few = template_file("drops_late_system"), {"thinking": False, "tools": False}
    assert check_template(path, **few).sound
    required = check_template(path, **few, required=["system"])
    assert (required.sound, required.verdict("user").severity) == (False, None)
    assert not check_template(path, **few, roles=["system"]).sound
    with pytest.raises(TokenError, match="kinds among"):
        check_template(path, required=["sytem"])
    with pytest.raises(TokenError, match="roles among"):
        check_template(path, roles=["sistem"])


def test_without_tools_only_dialogues_are_checked(template_file):
    report = check_template(template_file("drops_tool_calls"), tools=False, thinking=False)
    assert {verdict.kind for verdict in report.verdicts} == {"user", "system", "assistant", "system+user"}
    assert report.sound


def test_every_failure_and_finding_names_a_rule(report_on):
    for name in ("moves_tools", "chatml", "prompt_opens_another_turn"):
        report = report_on(name)
        found = [failure.rule for verdict in report.verdicts for failure in verdict.failures]
        found += [finding.rule for finding in report.findings]
        assert set(found) <= set(RULES)


def test_a_real_vocabulary_is_checked_id_by_id(tokenizers_folder):
    report = check_template(tokenizers_folder / "qwen3", thinking=False)
    assert report.sound
    assert report.of_rule("stop-tokens") == ()
