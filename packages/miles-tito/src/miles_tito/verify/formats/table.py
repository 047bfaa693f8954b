"""The table of a corpus run: a row for each template, a column for each kind, and the totals."""

from collections.abc import Sequence

from miles_tito.verify.report import Outcome, TemplateReport, Unusable, Verdict
from miles_tito.verify.shapes import KINDS


def table(outcomes: Sequence[Outcome]) -> str:
    """Cells: `yes` sound, `arg` sound with a template argument, `no` not sound, `-` not known or not asked.

    The column `sound` is about every kind that is required (`*`) and every finding that is an error.
    """
    width = max((len(outcome.name) for outcome in outcomes), default=0)
    columns = [f"{kind}{'*' if kind in _required(outcomes) else ''}" for kind in KINDS]
    head = " ".join([f"{'template':<{width}}", "sound", *columns, "notes"])
    rows = [_row(outcome, width, columns) for outcome in outcomes]
    return "\n".join([head, *rows, "", totals(outcomes)])


def totals(outcomes: Sequence[Outcome]) -> str:
    """How many templates are sound, in all and for each kind, natively and with an argument that was found."""
    reports = [outcome for outcome in outcomes if isinstance(outcome, TemplateReport)]
    parts = []
    for kind in KINDS:
        verdicts = [verdict for report in reports for verdict in report.verdicts if verdict.kind == kind]
        if verdicts:
            sound = sum(verdict.sound for verdict in verdicts)
            helped = sum(verdict.argument is not None for verdict in verdicts)
            parts.append(f"{kind} {sound}{f' (+{helped} with an argument)' if helped else ''}")
    unusable = len(outcomes) - len(reports)
    whole = f"{sum(report.sound for report in reports)} sound for every required kind"
    return (
        f"{len(outcomes)} templates: {', '.join(parts)}; {whole}{f', {unusable} not usable' if unusable else ''}.\n"
        f"Reasoning stays in history: {_reasoning(reports)}."
    )


def _reasoning(reports: Sequence[TemplateReport]) -> str:
    """Natively, and with the argument that the findings name."""
    kept = sum(not report.of_rule("reasoning-retention") for report in reports)
    warned = (f for report in reports for f in report.of_rule("reasoning-retention"))
    helped = sum(finding.severity == "warning" for finding in warned)
    return f"{kept}{f' (+{helped} with an argument)' if helped else ''}"


def _required(outcomes: Sequence[Outcome]) -> set[str]:
    reports = (outcome for outcome in outcomes if isinstance(outcome, TemplateReport))
    return {verdict.kind for report in reports for verdict in report.verdicts if verdict.required}


def _row(outcome: Outcome, width: int, columns: Sequence[str]) -> str:
    if isinstance(outcome, Unusable):
        return f"{outcome.name:<{width}} not usable: {outcome.why}"
    verdicts = {verdict.kind: verdict for verdict in outcome.verdicts}
    cells = [f"{_cell(verdicts.get(kind)):<{len(column)}}" for kind, column in zip(KINDS, columns, strict=True)]
    sound = "yes" if outcome.sound else "NO"
    return " ".join([f"{outcome.name:<{width}}", f"{sound:<5}", *cells, _notes(outcome)]).rstrip()


def _cell(verdict: Verdict | None) -> str:
    if verdict is None:
        return "-"
    if verdict.sound:
        return "yes"
    if not verdict.failures:
        return "-"
    return "no" if verdict.argument is None else "arg"


def _notes(report: TemplateReport) -> str:
    """The arguments that mend a kind, and the rules broken, each once."""
    arguments = [dict(verdict.argument) for verdict in report.verdicts if verdict.argument is not None]
    rules = [failure.rule for verdict in report.verdicts for failure in verdict.failures[:1]]
    rules += [finding.rule for finding in report.findings if finding.severity != "note"]
    return ", ".join(dict.fromkeys([*(" ".join(f"{k}={v}" for k, v in one.items()) for one in arguments), *rules]))
