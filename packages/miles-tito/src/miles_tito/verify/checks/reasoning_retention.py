"""Whether the reasoning of a turn is still there when more messages follow, and which argument keeps it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from miles_tito.errors import TemplateError
from miles_tito.profile import EPOCH
from miles_tito.render import ChatTemplate
from miles_tito.switches import keepers
from miles_tito.verify.report import Finding
from miles_tito.verify.shapes import TOOLS
from miles_tito.verify.trial import Trial
from miles_tito.verify.words import Words, words_in, words_of

Message = Mapping[str, Any]


def check(trial: Trial) -> Iterator[Finding]:
    """A warning where an argument would keep reasoning that is dropped, a note where none does."""
    template = trial.chat.template
    dropped = _dropped(template, trial.with_tools)
    if dropped:
        keeps = next((one for one in keepers(template) if _keeps(template.with_kwargs(one), trial.with_tools)), None)
        when = " and ".join(dropped)
        yield Finding(
            rule="reasoning-retention",
            severity="note" if keeps is None else "warning",
            what=f"reasoning is dropped from history {when}.",
            cure="" if keeps is None else f"Pass the template argument {keeps}.",
        )


def _keeps(template: ChatTemplate, with_tools: bool) -> bool:
    """Whether the template still renders, and drops nothing."""
    say = Words(reasoning=True)
    return _holds(template, [say.user(), say.answer()]) is True and not _dropped(template, with_tools)


def _dropped(template: ChatTemplate, with_tools: bool) -> list[str]:
    """When reasoning is gone; a template that has no place for it says just that."""
    say = Words(reasoning=True)
    start, turn = say.user(), say.answer()
    if _holds(template, [start, turn]) is False:
        return ["at once: the template never renders it"]
    found = []
    if _holds(template, [start, turn, {"role": "user", "content": "go on"}]) is False:
        found.append("after the next user message")
    if with_tools:
        call = say.calls()
        tried = [start, call, *say.results(call), {"role": "assistant", "content": "done"}]
        if _holds(template, tried) is False:
            found.append("after the next turn")
    return found


def _holds(template: ChatTemplate, messages: Sequence[Message]) -> bool | None:
    """Whether every thought of the messages is rendered; None when the template refuses them."""
    for tools in ((), TOOLS):
        try:
            text = template.render(template.normalised(messages), tools=tools, generation_prompt=False, now=EPOCH)
        except TemplateError:
            continue
        return {word for word in words_of(messages) if word.stem == "thought"} <= set(words_in(text))
    return None
