"""Tool schemas whose text spells control tokens; messages are checked as they are appended."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from miles_core.errors import TokenError
from miles_tito.profile import EPOCH
from miles_tito.verify.checks.appended_specials import special_names
from miles_tito.verify.report import Finding
from miles_tito.verify.shapes import TOOLS
from miles_tito.verify.trial import Trial, lookalikes
from miles_tito.verify.words import Words


def check(trial: Trial) -> Iterator[Finding]:
    """An error when a description brings control tokens into the prompt, a warning when it cannot be encoded."""
    spelled = " ".join(lookalikes(trial.chat))
    if not trial.with_tools or not spelled:
        return
    function = TOOLS[0]["function"]
    tools = [{**TOOLS[0], "function": {**function, "description": f"{function['description']} {spelled}"}}]
    user = Words(reasoning=False).user()
    try:
        plain = _specials(trial, user, TOOLS)
    except TokenError:
        return
    try:
        extra = _specials(trial, user, tools) - plain
    except TokenError as error:
        yield Finding(rule="special-token-injection", severity="warning", what=f"in a tool schema: {error}")
        return
    if extra:
        what = f"{', '.join(extra)} in a tool's description became control tokens."
        yield Finding(rule="special-token-injection", severity="error", what=what)


def _specials(trial: Trial, user: Mapping[str, Any], tools: Any) -> Counter[str]:
    names = {trial.chat.vocabulary.controls[token]: token for token in special_names(trial.chat)}
    ids = trial.chat.begin([user], tools, now=EPOCH).ids
    return Counter(names[number] for number in ids if number in names)
