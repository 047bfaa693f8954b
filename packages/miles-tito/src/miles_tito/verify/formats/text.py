"""Text for people: a page for one template, a table for several."""

from collections.abc import Iterator, Sequence

from miles_tito.verify.formats.table import table
from miles_tito.verify.options import Options
from miles_tito.verify.report import Outcome, TemplateReport, Unusable, Verdict


def text(outcomes: Sequence[Outcome], options: Options) -> str:
    """A page for one template; for several a table with totals, below the pages of those that fail with `explain`.

    What could not be checked has no page: a sentence about it goes to stderr.
    """
    if len(outcomes) == 1:
        (outcome,) = outcomes
        return "" if isinstance(outcome, Unusable) else page(outcome, explain=options.explain)
    pages = [
        page(outcome, explain=True)
        for outcome in outcomes
        if options.explain and isinstance(outcome, TemplateReport) and not outcome.passes(options.fail_on)
    ]
    return "\n\n".join([*pages, table(outcomes)])


def page(report: TemplateReport, *, explain: bool = False) -> str:
    """A line for each kind, below it the first conversation that fails; every one, and what was derived, explained."""
    lines = [f"{report.name}: {'sound' if report.sound else 'NOT SOUND'}"]
    for verdict in report.verdicts:
        lines += _verdict(verdict, explain=explain)
    for finding in report.findings:
        lines.append(f"  {finding.severity}: {finding.what} [{finding.rule}]")
        lines += [f"      {line}" for line in finding.diff if explain or finding.severity == "error"]
        if explain or finding.severity != "note":
            lines.append(f"      cure: {finding.advice}")
    if explain:
        lines += ["  derived:", *(f"    {name}: {value!r}" for name, value in report.facts.items())]
    return "\n".join(lines)


def _verdict(verdict: Verdict, *, explain: bool) -> Iterator[str]:
    state = (
        "sound"
        if verdict.sound
        else "not sound"
        if verdict.failures
        else "not known"
        if verdict.tried
        else "not reached"
    )
    if verdict.argument is not None:
        state += f", sound with {dict(verdict.argument)}"
    notes = [f"{verdict.tried} appends"]
    notes += [f"{len(verdict.failures)} fail"] if verdict.failures else []
    notes += [f"the prompts of {verdict.left_out} more conversations are refused"] if verdict.left_out else []
    notes += ["from history"] if verdict.proof == "history" and verdict.sound else []
    notes += [] if verdict.required else ["not required"]
    yield f"  {verdict.kind:<12} {state} ({', '.join(notes)})"
    for failure in verdict.failures if explain else verdict.failures[:1]:
        yield f"      in {failure.shape!r}: {failure.reason} [{failure.rule}]"
        yield from (f"        {line}" for line in failure.diff)
    if not verdict.sound:
        yield f"      cure: {verdict.cure}"
