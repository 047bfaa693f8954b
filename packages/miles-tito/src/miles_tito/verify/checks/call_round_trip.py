"""Tool calls as the template writes them, parsed from the ids."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from miles_tito.verify.report import Finding
from miles_tito.verify.trial import Trial
from miles_tito.verify.words import words_in


def check(trial: Trial) -> Iterator[Finding]:
    """A warning with the first turn whose calls are not read back by name and arguments.

    Turns that the template refuses or writes without its calls say nothing about a parser.
    """
    for before, turn, ids in trial.turns:
        wanted = [_plain(call) for call in turn.get("tool_calls") or ()]
        written = {word.text for word in words_in(trial.chat.vocabulary.decode(ids))}
        if not wanted or not all(call[1]["word"] in written for call in wanted):
            continue
        found = [_plain(call) for call in before.parse(ids).get("tool_calls") or () if not call.get("invalid")]
        if found != wanted:
            yield Finding(
                rule="call-round-trip",
                severity="warning",
                what=f"tool calls as the template writes them are not read back by the parser of the format "
                f"{trial.chat.profile.format!r}: expected {_listed(wanted)}, found {_listed(found)}.",
            )
            return


def _plain(call: Mapping[str, Any]) -> tuple[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    try:
        return function["name"], json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return function["name"], arguments


def _listed(calls: list[tuple[str, Any]]) -> str:
    return ", ".join(f"{name}({json.dumps(arguments)})" for name, arguments in calls) or "no call"
