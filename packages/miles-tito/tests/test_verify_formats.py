"""JUnit, SARIF and JSON: what their readers rely on, counted again from the outcomes."""

import json
from xml.etree import ElementTree

import pytest

from miles_tito.errors import Divergence
from miles_tito.verify import RULES, Failure, Finding, TemplateReport, Unusable, Verdict
from miles_tito.verify.formats import FORMATS
from miles_tito.verify.options import Options

DIVERGENCE = Divergence(offset=3, before="abc", expected="d\x00<&", found="e]]>")
FAILURE = Failure(
    rule="strict-prefix",
    shape="a user turn",
    reason="text moves\x1b",
    cure="Stop.",
    divergence=DIVERGENCE,
    diff=("- d<&", "+ e]]>\ufdd0"),
)
REPORT = TemplateReport(
    name="one & <two>",
    path="templates/one two.jinja",
    verdicts=(
        Verdict(kind="tool", tried=3, required=True, proof="bounded"),
        Verdict(kind="user", tried=2, required=True, failures=(FAILURE, FAILURE), argument={"keep": True}),
        Verdict(kind="system", tried=2, required=False, failures=(FAILURE,)),
        Verdict(kind="assistant", tried=0, required=False),
    ),
    findings=(
        Finding(rule="clock", severity="note", what="the template prints the time."),
        Finding(rule="stop-tokens", severity="warning", what="it never stops.", cure="Stop it."),
        Finding(rule="pinned-profile", severity="error", what="stops changed."),
        Finding(rule="pinned-profile", severity="error", what="roles changed."),
    ),
    facts={"stops": ["<|im_end|>"]},
    profile='{"schema": 1}',
)
SOUND = TemplateReport(
    name="fine", path="fine.jinja", verdicts=(Verdict(kind="user", tried=1, required=True),), findings=()
)
BROKEN = Unusable(name="broken", path="broken.jinja", why="expected Jinja, found \x07.")
OUTCOMES = [REPORT, SOUND, BROKEN]


def written(form, outcomes=OUTCOMES, **options):
    return FORMATS[form](outcomes, Options(paths=("x",), format=form, **options))


def read_junit(**options):
    return ElementTree.fromstring(written("junit", **options))


@pytest.mark.parametrize("fail_on", ["error", "warning"])
def test_junit_counts_are_those_of_its_cases(fail_on):
    root = read_junit(fail_on=fail_on)
    assert root.tag == "testsuites"
    assert [suite.get("name") for suite in root] == ["one & <two>", "fine", "broken"]
    for element in (root, *root):
        cases = list(element.iter("testcase"))
        assert int(element.get("tests")) == len(cases)
        for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(element.get(name)) == sum(case.find(tag) is not None for case in cases)
    assert all(len(case.findall("failure")) <= 1 for case in root.iter("testcase"))
    assert all(case.get("classname") and case.get("name") for case in root.iter("testcase"))


def test_junit_fails_what_fails_the_run_and_passes_the_rest():
    def failed(root):
        return {
            case.get("name") for case in root.find("testsuite").iter("testcase") if case.find("failure") is not None
        }

    assert failed(read_junit()) == {"append user", "pinned-profile"}
    assert failed(read_junit(fail_on="warning")) == {
        "append user",
        "append system",
        "append assistant",
        "stop-tokens",
        "pinned-profile",
    }


def test_junit_shows_the_reason_the_diff_the_cure_and_every_further_finding():
    cases = {case.get("name"): case for case in read_junit().find("testsuite").iter("testcase")}
    failure = cases["append user"].find("failure")
    assert (failure.get("type"), failure.get("message")) == ("strict-prefix", "in 'a user turn': text moves\ufffd")
    assert "- d<&\n+ e]]>\ufffd" in failure.text
    assert "cure: Pass the template argument {'keep': True}" in failure.text
    assert "also in 'a user turn'" in failure.text
    assert "roles changed." in cases["pinned-profile"].find("failure").text
    assert "note: the template prints the time." in cases["clock"].find("system-out").text
    assert cases["append assistant"].find("skipped") is not None


def test_junit_has_a_case_for_every_rule_about_the_template():
    names = {case.get("name") for case in read_junit().findall("testsuite")[1].iter("testcase")}
    assert names == {"append user", *(rule.id for rule in RULES.values() if not rule.per_kind)}


def test_junit_says_error_for_what_could_not_be_checked():
    (case,) = read_junit().findall("testsuite")[2].iter("testcase")
    assert case.find("error").get("message") == "expected Jinja, found \ufffd."


def test_sarif_has_the_shape_of_2_1_0():
    document = json.loads(written("sarif"))
    assert document["version"] == "2.1.0"
    assert document["$schema"].endswith("sarif-2.1.0.json")
    (run,) = document["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == list(RULES)
    assert all(rule["shortDescription"]["text"] and rule["help"]["text"] for rule in rules)
    assert len(run["results"]) == 3 + 4
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note")
        assert result["message"]["text"]
        (location,) = result["locations"]
        place = location["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "templates/one%20two.jinja"
        assert place["region"]["startLine"] == 1
    prints = [result["partialFingerprints"]["verdict/v1"] for result in run["results"][:3]]
    assert len(set(prints)) == 3


def test_sarif_levels_follow_the_verdicts_and_a_broken_template_fails_the_invocation():
    (run,) = json.loads(written("sarif"))["runs"]
    assert [result["level"] for result in run["results"]] == [
        "error", "warning", "warning", "note", "warning", "error", "error",
    ]  # fmt: skip
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False
    assert [n["message"]["text"] for n in invocation["toolExecutionNotifications"]] == [BROKEN.why]
    (fine,) = json.loads(written("sarif", [SOUND]))["runs"]
    assert (fine["results"], fine["invocations"][0]["executionSuccessful"]) == ([], True)


def test_sarif_points_into_a_model_folder_at_the_file_with_the_template(tmp_path):
    (tmp_path / "chat_template.jinja").write_text("x")
    report = TemplateReport(name="m", path=str(tmp_path), verdicts=REPORT.verdicts, findings=())
    (run,) = json.loads(written("sarif", [report]))["runs"]
    uri = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri == (tmp_path / "chat_template.jinja").as_uri()


def test_json_of_one_template_is_its_report():
    found = json.loads(written("json", [REPORT]))
    assert found["sound"] is False
    assert found["profile"] == {"schema": 1}
    user = next(verdict for verdict in found["verdicts"] if verdict["kind"] == "user")
    assert (user["sound"], user["severity"], user["argument"]) == (False, "error", {"keep": True})
    assert user["failures"][0]["divergence"]["found"] == "e]]>"
    assert [finding["cure"] for finding in found["findings"]][1] == "Stop it."


def test_json_of_several_holds_each_and_whether_all_pass():
    found = json.loads(written("json"))
    assert (found["sound"], found["passes"]) == (False, False)
    assert [template["name"] for template in found["templates"]] == ["one & <two>", "fine", "broken"]
    assert found["templates"][2]["why"] == BROKEN.why
    fine = json.loads(written("json", [SOUND, SOUND]))
    assert (fine["sound"], fine["passes"]) == (True, True)


def test_text_of_one_template_has_a_line_for_each_kind_and_finding():
    lines = written("text", [REPORT]).splitlines()
    assert lines[0] == "one & <two>: NOT SOUND"
    assert "  tool         sound (3 appends)" in lines
    assert "  user         not sound, sound with {'keep': True} (2 appends, 2 fail)" in lines
    assert "  assistant    not reached (0 appends, not required)" in lines
    assert "        - d<&" in lines
    assert "  error: stops changed. [pinned-profile]" in lines
    assert written("text", [BROKEN]) == ""


def test_a_rule_about_appends_cannot_be_a_failure_of_a_template_rule():
    with pytest.raises(ValueError, match="rule about appends"):
        Failure(rule="clock", shape="x", reason="y")
