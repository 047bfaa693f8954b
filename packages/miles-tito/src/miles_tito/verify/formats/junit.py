"""JUnit XML, as CI systems read it: a suite for each template, a case for each kind of append and each rule."""

import re
from collections.abc import Iterator, Sequence
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from miles_tito.verify.options import Options
from miles_tito.verify.report import Finding, Outcome, Unusable, Verdict
from miles_tito.verify.rules import RULES, Severity

_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufdcf\ufdf0-\ufffd\U00010000-\U0010ffff]")


def junit(outcomes: Sequence[Outcome], options: Options) -> str:
    """A failure is what makes the run fail (`--fail-on`); what is less severe stands in a passing case's output.

    A kind that no conversation reached, and that need not be, is skipped; a template that cannot be checked an error.
    """
    root = Element("testsuites", name="miles check-template")
    seconds: list[float] = []
    for outcome in outcomes:
        suite = SubElement(root, "testsuite", name=_clean(outcome.name))
        for name, case in _cases(outcome, options.fail_on):
            case.attrib = {"classname": _clean(outcome.name), "name": name, "file": _clean(outcome.path)}
            suite.append(case)
        seconds.append(0.0 if isinstance(outcome, Unusable) else outcome.seconds)
        _count(suite, [suite], seconds[-1])
    _count(root, list(root), sum(seconds))
    indent(root)
    return tostring(root, encoding="unicode", xml_declaration=True).strip()


def _cases(outcome: Outcome, fail_on: Severity) -> Iterator[tuple[str, Element]]:
    if isinstance(outcome, Unusable):
        case = Element("testcase")
        _add(case, "error", "unusable", outcome.why, "")
        yield "template", case
        return
    for verdict in outcome.verdicts:
        yield f"append {verdict.kind}", _verdict_case(verdict, fail_on)
    for rule in RULES.values():
        findings = outcome.of_rule(rule.id)
        if findings or not rule.per_kind:
            yield rule.id, _rule_case(findings, fail_on)


def _verdict_case(verdict: Verdict, fail_on: Severity) -> Element:
    case = Element("testcase")
    if verdict.sound:
        return case
    if not verdict.failures:
        why = (
            f"{verdict.begun} conversations reached this kind of append, the prompts of {verdict.left_out} are refused"
        )
        if _fails(verdict.severity, fail_on):
            _add(case, "failure", "template-raises", why, verdict.cure)
        else:
            SubElement(case, "skipped", message=why)
        return case
    first = verdict.failures[0]
    message = f"in {first.shape!r}: {first.reason}"
    body = "\n".join([*first.diff, f"cure: {verdict.cure}", *_others(verdict)])
    if _fails(verdict.severity, fail_on):
        _add(case, "failure", first.rule, message, body)
    else:
        SubElement(case, "system-out").text = _clean(f"{verdict.severity}: {message}\n{body}")
    return case


def _others(verdict: Verdict) -> list[str]:
    return [f"also in {failure.shape!r}: {failure.reason}" for failure in verdict.failures[1:]]


def _rule_case(findings: Sequence[Finding], fail_on: Severity) -> Element:
    case = Element("testcase")
    told: list[str] = []
    for finding in findings:
        body = "\n".join([*finding.diff, f"cure: {finding.advice}"])
        if _fails(finding.severity, fail_on):
            _add(case, "failure", finding.rule, finding.what, body)
        else:
            told.append(f"{finding.severity}: {finding.what}\n{body}")
    if told:
        SubElement(case, "system-out").text = _clean("\n".join(told))
    return case


def _fails(severity: Severity | None, fail_on: Severity) -> bool:
    return severity == "error" or (fail_on == "warning" and severity == "warning")


def _add(case: Element, tag: str, kind: str, message: str, body: str) -> None:
    """One failure or error a case: readers take only the first, so that later ones join its text."""
    known = case.find(tag)
    if known is None:
        known = SubElement(case, tag, type=kind, message=_clean(message))
        known.text = _clean(body)
    else:
        known.text = f"{known.text}\n{_clean(message)}\n{_clean(body)}"


def _count(element: Element, suites: Sequence[Element], seconds: float) -> None:
    """Set the counts and the time of a suite, or of all of them together."""
    cases = [case for suite in suites for case in suite.iter("testcase")]
    element.set("tests", str(len(cases)))
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        element.set(name, str(sum(case.find(tag) is not None for case in cases)))
    element.set("time", f"{seconds:.3f}")


def _clean(text: str) -> str:
    """The text without characters that XML cannot hold."""
    return _NO_XML.sub("\ufffd", text)
