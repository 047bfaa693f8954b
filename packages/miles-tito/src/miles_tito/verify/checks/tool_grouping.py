"""Tool after tool: results appended one by one against the whole run."""

from collections.abc import Iterator

from miles_tito.errors import Divergence, TemplateError
from miles_tito.profile import EPOCH
from miles_tito.verify.conversation import raw_render
from miles_tito.verify.diff import diff_lines
from miles_tito.verify.report import Finding
from miles_tito.verify.shapes import TOOLS
from miles_tito.verify.trial import Trial
from miles_tito.verify.words import Words


def check(trial: Trial) -> Iterator[Finding]:
    """A note when the render up to one result is no prefix of the render up to the next."""
    if not trial.with_tools:
        return
    say = Words(reasoning=False)
    calls = say.calls(2)
    one, other = say.results(calls)
    start = [say.user(), calls]
    try:
        first = raw_render(trial.chat, [*start, one], tools=TOOLS, now=EPOCH)
        both = raw_render(trial.chat, [*start, one, other], tools=TOOLS, now=EPOCH)
    except TemplateError:
        return
    if not both.startswith(first):
        yield Finding(
            rule="tool-grouping",
            severity="note",
            what="consecutive tool results share one turn, which results appended one by one would part.",
            diff=diff_lines(Divergence.between(both, first), trial.chat.vocabulary.marker),
        )
