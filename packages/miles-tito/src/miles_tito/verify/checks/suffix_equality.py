"""What follows a turn, compared between the conversations in which it followed."""

from collections.abc import Iterator

from miles_core.messages import text_of
from miles_tito.errors import Divergence
from miles_tito.marks import unmarked
from miles_tito.proof import FROM_HISTORY
from miles_tito.verify.conversation import Grown
from miles_tito.verify.diff import diff_lines
from miles_tito.verify.report import Finding
from miles_tito.verify.shapes import kind_of
from miles_tito.verify.trial import Trial

Key = tuple[bool, int, str, int, bool]


def check(trial: Trial) -> Iterator[Finding]:
    """A note for each kind whose suffix is another one under another history, or could not be proved not to be."""
    seen: dict[Key, tuple[str, Grown]] = {}
    told: set[str] = set()
    for grown in trial.grown:
        kind = kind_of(grown.step.appended)
        text = _skeleton(grown) if grown.step.plain and not grown.step.truncated else None
        if text is None or kind in told:
            continue
        first, shown_by = seen.setdefault(_key(grown), (text, grown))
        if first != text:
            told.add(kind)
            here, there = grown.step.shape, shown_by.step.shape
            yield Finding(
                rule="suffix-equality",
                severity="note",
                what=f"an append of {kind} is written otherwise in {here!r} than in {there!r}.",
                diff=diff_lines(Divergence.between(first, text), trial.chat.vocabulary.marker),
            )
    unproved = sorted(
        {_appended(key) for key, proof in trial.chat.profile.proofs.items() if proof == FROM_HISTORY} - told
    )
    if unproved:
        what = f"appends of {', '.join(unproved)} are derived from the whole history each time."
        yield Finding(rule="suffix-equality", severity="note", what=what)


def _key(grown: Grown) -> Key:
    """What the suffix may depend on: the turn's reasoning and calls, the messages in order, tools given."""
    step = grown.step
    thinks = "reasoning_content" in step.turn
    calls = len(step.turn.get("tool_calls") or ())
    return thinks, calls, kind_of(step.appended), len(step.appended), bool(step.before.tools)


def _skeleton(grown: Grown) -> str | None:
    """The suffix with names in place of the messages' texts and ids; None where a text is not found as it is."""
    text = unmarked(grown.after.last.text or "")
    for message in grown.step.appended:
        content = text_of(message.get("content"))
        if not content or content not in text:
            return None
        text = text.replace(content, f"{{{message['role']}}}", 1)
    for message in (grown.step.turn, *grown.step.appended):
        for call in message.get("tool_calls") or ():
            text = text.replace(call["id"], "{id}")
    return text


def _appended(kind: str) -> str:
    return kind.split(">")[-1].split("|")[0]
