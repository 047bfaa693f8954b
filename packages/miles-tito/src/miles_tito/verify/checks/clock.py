"""Templates that print the time."""

from collections.abc import Iterator
from datetime import timedelta

from miles_tito.errors import Divergence, TemplateError
from miles_tito.profile import EPOCH
from miles_tito.verify.conversation import raw_render
from miles_tito.verify.diff import diff_lines
from miles_tito.verify.report import Finding
from miles_tito.verify.shapes import TOOLS
from miles_tito.verify.trial import Trial
from miles_tito.verify.words import Words

_LATER = timedelta(days=400, hours=7, minutes=11, seconds=13, microseconds=17)


def check(trial: Trial) -> Iterator[Finding]:
    """A note when two renders of one conversation at different times differ."""
    say = Words(reasoning=False)
    for messages in ([say.user()], [say.system(), say.user()]):
        for tools in ((), TOOLS if trial.with_tools else ()):
            try:
                now, later = (
                    raw_render(trial.chat, messages, tools=tools, generation_prompt=True, now=when)
                    for when in (EPOCH, EPOCH + _LATER)
                )
            except TemplateError:
                continue
            if now != later:
                yield Finding(
                    rule="clock",
                    severity="note",
                    what="the template prints the time.",
                    diff=diff_lines(Divergence.between(now, later), trial.chat.vocabulary.marker),
                )
                return
