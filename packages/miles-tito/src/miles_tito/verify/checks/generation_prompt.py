"""The generation prompt against the turn that history shows in its place."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from miles_tito.errors import Divergence, TemplateError, shared_prefix
from miles_tito.marks import Marker
from miles_tito.profile import EPOCH
from miles_tito.verify.conversation import raw_render
from miles_tito.verify.diff import diff_lines, shown
from miles_tito.verify.report import Finding
from miles_tito.verify.trial import Trial
from miles_tito.verify.words import Words

Message = Mapping[str, Any]


def check(trial: Trial) -> Iterator[Finding]:
    """A finding where a turn in history does not begin with what the generation prompt wrote for it.

    Where the first control token is another one it is an error: the prompt opens another turn than history shows.
    Anything else (`<think>` against `</think>`) is a note: it belongs to the turn, whose ids are kept as sampled.
    """
    chat, marker = trial.chat, trial.chat.vocabulary.marker
    for thinks in (False, True):
        for context, turn, follow in _contexts(thinks, with_tools=trial.with_tools):
            try:
                prompt = raw_render(chat, context, generation_prompt=True, now=EPOCH)
                history = raw_render(chat, [*context, turn, follow], now=EPOCH)
            except TemplateError:
                continue
            closed = _closed(trial, context)
            agreed = _whole_tokens(prompt, shared_prefix(prompt, history), marker)
            if agreed == len(prompt) or agreed < len(closed):
                continue
            first = [next(iter(marker.written(text[len(closed) :])), None) for text in (prompt, history)]
            other_turn = first[0] is not None and first[1] is not None and first[0][0] != first[1][0]
            how = "that has reasoning" if thinks else "without reasoning"
            yield Finding(
                rule="generation-prompt",
                severity="error" if other_turn else "note",
                what=f"the generation prompt writes {shown(prompt[agreed:], marker)!r} where history shows something "
                f"else for a turn {how}.",
                diff=diff_lines(Divergence.between(history, prompt), marker),
            )
            break


def _contexts(thinks: bool, *, with_tools: bool) -> Iterator[tuple[Sequence[Message], Message, Message]]:
    say = Words(reasoning=thinks)
    yield [say.user()], say.answer(), say.user()
    if with_tools:
        call = say.calls()
        yield [say.user()], call, say.results(call)[0]


def _whole_tokens(prompt: str, agreed: int, marker: Marker) -> int:
    """The length agreed, less a control token that it cuts."""
    return next((t.start() for t in marker.written(prompt) if t.start() < agreed < t.end()), agreed)


def _closed(trial: Trial, context: Sequence[Message]) -> str:
    """What stands before the generation prompt: a divergence in there is `strict-prefix`'s."""
    try:
        without = raw_render(trial.chat, context, now=EPOCH)
        prompt = raw_render(trial.chat, context, generation_prompt=True, now=EPOCH)
    except TemplateError:
        return ""
    return without if prompt.startswith(without) else ""
