"""The token that ends a turn against the stop ids that the model's files name."""

from collections.abc import Iterator

from miles_tito.errors import TemplateError
from miles_tito.profile import EPOCH
from miles_tito.verify.conversation import raw_render
from miles_tito.verify.report import Finding
from miles_tito.verify.trial import Trial
from miles_tito.verify.words import Words, words_of


def check(trial: Trial) -> Iterator[Finding]:
    """A warning when engines that read the model's files alone would not stop where the template ends a turn."""
    chat = trial.chat
    named = chat.vocabulary.stop_ids
    if not trial.real_vocabulary:
        return
    if not named:
        yield Finding(rule="stop-tokens", severity="warning", what="the model's files name no end-of-sequence token.")
        return
    for what, token in _ends(trial):
        number = chat.vocabulary.id_of(token)
        if number is not None and number not in named:
            names = [chat.vocabulary.token_of(stop) for stop in named]
            yield Finding(
                rule="stop-tokens",
                severity="warning",
                what=f"{what} ends in {token} ({number}), but the model's files stop only at {', '.join(names)}.",
                cure=f"Add {number} to eos_token_id in generation_config.json, or hand engines the ids that Miles "
                f"derives: {list(chat.stop_token_ids)}.",
            )
            return


def _ends(trial: Trial) -> Iterator[tuple[str, str]]:
    """How turns end: the first control token after the turn's own text, where the template writes one."""
    say = Words(reasoning=False)
    turns = [("a turn of text", say.answer())]
    turns += [("a turn of tool calls", say.calls())] if trial.with_tools else []
    for what, turn in turns:
        try:
            text = raw_render(trial.chat, [say.user(), turn], now=EPOCH)
        except TemplateError:
            continue
        last = list(words_of([turn]))[-1].text
        written = trial.chat.vocabulary.marker.written(text[text.find(last) :]) if last in text else []
        if written and written[-1][0] in trial.chat.profile.stops:
            yield what, written[-1][0]
