"""Template arguments that do nothing."""

from collections.abc import Iterator

from miles_tito.verify.report import Finding
from miles_tito.verify.trial import Trial


def check(trial: Trial) -> Iterator[Finding]:
    """A warning for each argument whose name the template never reads: a slip of the pen is not followed silently."""
    template = trial.chat.template
    known = ", ".join(sorted(template.reads - {"messages", "tools", "add_generation_prompt", "raise_exception"}))
    for name in sorted(set(template.kwargs) - template.reads):
        what = f"the template does not read the argument {name!r}; it reads {known or 'none'}."
        yield Finding(rule="unread-argument", severity="warning", what=what)
