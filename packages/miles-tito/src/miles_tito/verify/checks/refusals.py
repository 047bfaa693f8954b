"""Prompts that the template refuses before any turn is sampled."""

from collections.abc import Iterator

from miles_tito.verify.report import Finding
from miles_tito.verify.trial import Trial


def check(trial: Trial) -> Iterator[Finding]:
    """A warning for each reason, with the first conversation that shows it."""
    for reason, names in trial.refusals():
        what = f"{reason.rstrip('.')} (the prompts of {len(names)} conversations, first {names[0]!r})."
        yield Finding(rule="template-raises", severity="warning", what=what)
