"""SARIF 2.1.0, as code scanning reads it: a result for each kind that is not sound and each finding."""

import json
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from urllib.parse import quote

from miles_tito.verify.options import Options
from miles_tito.verify.report import Outcome, TemplateReport, Unusable
from miles_tito.verify.rules import RULES, Severity

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_RULE_NAMES = list(RULES)


def sarif(outcomes: Sequence[Outcome], options: Options) -> str:
    """One run. What could not be checked is a notification of an invocation that did not succeed."""
    reports = [outcome for outcome in outcomes if isinstance(outcome, TemplateReport)]
    failed = [outcome for outcome in outcomes if isinstance(outcome, Unusable)]
    run = {
        "tool": {"driver": _driver()},
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {
                "executionSuccessful": not failed,
                "toolExecutionNotifications": [
                    {"level": "error", "message": {"text": one.why}, "locations": [_location(one.path)]}
                    for one in failed
                ],
            }
        ],
        "results": [result for report in reports for result in _results(report)],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, ensure_ascii=False, indent=1)


def _driver() -> dict[str, Any]:
    driver = {"name": "miles check-template", "rules": [_rule(name) for name in _RULE_NAMES]}
    try:
        return {**driver, "version": version("miles-tito")}
    except PackageNotFoundError:
        return driver


def _rule(name: str) -> dict[str, Any]:
    rule = RULES[name]
    return {
        "id": rule.id,
        "name": "".join(part.capitalize() for part in rule.id.split("-")),
        "shortDescription": {"text": rule.title},
        "help": {"text": rule.cure},
        "defaultConfiguration": {"level": "error" if rule.per_kind else "note"},
    }


def _results(report: TemplateReport) -> Iterator[dict[str, Any]]:
    for verdict in report.verdicts:
        if verdict.sound:
            continue
        shown = verdict.failures[0] if verdict.failures else None
        rule = shown.rule if shown else "template-raises"
        what = f"{shown.reason}, in {shown.shape!r}" if shown else "no conversation reached it"
        text = f"{report.name}: an append of {verdict.kind} is not sound: {what}. {verdict.cure}"
        yield _result(report, rule, verdict.severity, text, verdict.kind, shown.diff if shown else ())
    for finding in report.findings:
        text = f"{report.name}: {finding.what} {finding.advice}"
        yield _result(report, finding.rule, finding.severity, text, "", finding.diff)


def _result(
    report: TemplateReport, rule: str, severity: Severity | None, text: str, kind: str, diff: Sequence[str]
) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": rule,
        "ruleIndex": _RULE_NAMES.index(rule),
        "level": severity,
        "message": {"text": "\n".join([text, *diff])},
        "locations": [_location(report.path)],
        "partialFingerprints": {"verdict/v1": f"{report.name}/{rule}/{kind}"},
    }
    return result


def _location(path: str) -> dict[str, Any]:
    """The first line of the template's file, or of the file in a model folder that names its template."""
    place = Path(path)
    if place.is_dir():
        names = ("chat_template.jinja", "tokenizer_config.json", "chat_template.json")
        place = next((place / name for name in names if (place / name).is_file()), place)
    uri = place.as_uri() if place.is_absolute() else quote(place.as_posix())
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": {"startLine": 1}}}
