"""Roles whose messages the template does not render."""

from collections.abc import Iterator

from miles_tito.verify.report import Finding
from miles_tito.verify.trial import Trial


def check(trial: Trial) -> Iterator[Finding]:
    """A note for each role that does not show when appended after a turn; an error where the caller requires it."""
    for role in ("user", "system", "tool", "developer"):
        if role in trial.chat.profile.roles or (role == "tool" and not trial.with_tools):
            continue
        required = role in trial.roles
        yield Finding(
            rule="role-support",
            severity="error" if required else "note",
            what=f"a {role} message after a turn is not rendered{', and the role is required' if required else ''}.",
        )
