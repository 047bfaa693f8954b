"""Text that the model wrote beside a tool call: still in history, and before the call."""

from collections.abc import Iterator

from miles_tito.verify.report import Finding
from miles_tito.verify.trial import Trial
from miles_tito.verify.words import words_in, words_of


def check(trial: Trial) -> Iterator[Finding]:
    """A warning when it is dropped or moved; the turn's own ids are kept, so no append fails for it."""
    for grown in trial.grown:
        noted = [word for word in words_of([grown.step.turn]) if word.stem == "note"]
        if not noted:
            continue
        rendered = words_in(grown.whole)
        calls = [word for word in words_of([grown.step.turn]) if word.stem == "seek"]
        if noted[0] not in rendered:
            what = "text beside a tool call is dropped from history."
        elif calls and calls[0] in rendered and rendered.index(calls[0]) < rendered.index(noted[0]):
            what = "text beside a tool call moves behind the call."
        else:
            continue
        yield Finding(rule="text-beside-calls", severity="warning", what=what)
        return
