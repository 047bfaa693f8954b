"""What the template makes of content and arguments in forms that nobody normalised."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from miles_tito.errors import TemplateError
from miles_tito.profile import EPOCH
from miles_tito.verify.report import Finding
from miles_tito.verify.shapes import TOOLS
from miles_tito.verify.trial import Trial
from miles_tito.verify.words import Words, words_in, words_of

Message = Mapping[str, Any]


def check(trial: Trial) -> Iterator[Finding]:
    """A note for each form of the API that the template refuses, loses or spells as Python or JSON in a string."""
    for form, plain, raw in _forms(trial):
        usual = _render(trial, plain, normalise=True)
        if usual is None or not set(words_of(plain)) <= set(words_in(usual)):
            continue
        text = _render(trial, raw, normalise=False)
        outcome = _outcome(text, usual, raw)
        if outcome:
            yield Finding(rule="content-forms", severity="note", what=f"{form} {outcome}.")


def _forms(trial: Trial) -> Iterator[tuple[str, Sequence[Message], Sequence[Message]]]:
    """`(name, messages in the usual form, the same in another form)`."""
    say = Words(reasoning=False)
    user = say.user()
    parts = {"role": "user", "content": [{"type": "text", "text": user["content"]}]}
    yield "content as a list of parts", [user], [parts]
    if not trial.with_tools:
        return
    for form, as_string in (("arguments as a string of JSON", True), ("arguments as an object", False)):
        call = say.calls(as_string=as_string)
        messages = [user, call, *say.results(call)]
        yield form, messages, messages
    call = say.calls(as_string=trial.chat.template.arguments == "string")
    result = say.results(call)
    yield "null as content beside tool calls", [user, call, *result], [user, {**call, "content": None}, *result]


def _outcome(text: str | None, usual: str, raw: Sequence[Message]) -> str:
    if text is None:
        return "is refused"
    if not set(words_of(raw)) <= set(words_in(text)):
        return "is lost"
    if '\\"word\\"' in text:
        return "is encoded twice"
    if "{'type'" in text or "{'word'" in text:
        return "is printed as Python"
    if text.count("None") > usual.count("None"):
        return 'is printed as "None"'
    return ""


def _render(trial: Trial, messages: Sequence[Message], *, normalise: bool) -> str | None:
    template = trial.chat.template
    given = template.normalised(messages) if normalise else [dict(message) for message in messages]
    for tools in (TOOLS if trial.with_tools else (), ()):
        try:
            return template.render(given, tools=tools, generation_prompt=False, now=EPOCH)
        except TemplateError:
            continue
    return None
