"""Roles whose messages the template does not render, and templates that render none."""

from collections.abc import Iterator

from miles_tito.errors import TemplateError
from miles_tito.profile import EPOCH
from miles_tito.tokenizer import ChatTokenizer
from miles_tito.verify.conversation import raw_render
from miles_tito.verify.report import Finding
from miles_tito.verify.shapes import TOOLS
from miles_tito.verify.trial import Trial
from miles_tito.verify.words import Words, words_in


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


def is_blank(chat: ChatTokenizer) -> bool:
    """True when prompts render, and no text of any message stands in them: what was read is no chat template."""
    say = Words(reasoning=False)
    renders = []
    for messages in ([say.user()], [say.system(), say.user()], [say.user(), say.answer(), say.user()]):
        for tools in ((), TOOLS):
            try:
                text = raw_render(chat, messages, tools=tools, generation_prompt=True, now=EPOCH)
            except TemplateError:
                continue
            renders.append(any(word.stem != "schema" for word in words_in(text)))
    return bool(renders) and not any(renders)
