"""The template argument under which a kind of append that fails is sound: what refusals name, tried on every shape."""

from collections.abc import Collection, Mapping, Set
from typing import Any

from miles_core.errors import TokenError
from miles_tito.tokenizer import ChatTokenizer
from miles_tito.verify.trial import Run, Trial


def mended(failed: Trial, everything: Collection[Run]) -> dict[str, Mapping[str, Any]]:
    """For each kind that failed and some argument makes sound in every run: the first such argument."""
    found: dict[str, Mapping[str, Any]] = {}
    for argument in failed.arguments:
        left = failed.failures.keys() - found.keys()
        trial = _tried(failed, argument, everything, left)
        found |= {kind: argument for kind in left if trial and trial.tried.get(kind) and kind not in trial.failures}
    return found


def _tried(failed: Trial, argument: Mapping[str, Any], everything: Collection[Run], left: Set[str]) -> Trial | None:
    """Every run that reaches a kind that is left, with the argument; None where it helps none in its own runs."""
    try:
        chat = ChatTokenizer(failed.chat.template.with_kwargs(argument), failed.chat.vocabulary)
    except TokenError:
        return None
    quick = Trial(chat=chat, checks=failed.checks)
    if not any(all(quick.run(run) for run in failed.failed_runs[kind]) and not quick.refused for kind in left):
        return None
    trial = Trial(chat=chat, checks=failed.checks)
    for run in everything:
        if not left.isdisjoint(run.shape.kinds):
            trial.run(run)
    return trial
