"""Why an append is refused or wrong, told from whole renders alone: the first cause that they show."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from miles_tito.errors import Divergence, NotExtendable, TemplateError, shared_prefix
from miles_tito.verify.conversation import Step
from miles_tito.verify.diff import diff_lines, shown
from miles_tito.verify.report import Failure
from miles_tito.verify.rules import RULES
from miles_tito.verify.words import Word, words_in, words_of


def cause_of(step: Step, error: NotExtendable | None = None) -> Failure | None:
    """The failure that whole renders of the step show; None when they show none.

    With the error of a refused append there always is one: what the error itself says, as the last resort.
    """
    found = _shown_by_renders(step)
    if error is None:
        return found
    found = found or _failure(step, "not-proved", error.reason, error.divergence)
    return replace(found, cure=error.help) if error.help else found


def _shown_by_renders(step: Step) -> Failure | None:
    try:
        whole = step.whole()
    except TemplateError as refusal:
        return _raises(step, refusal)
    return _content(step, whole) or _earlier_text(step, whole) or _end_of_turn(step, whole)


def lost_or_moved(step: Step, whole: str) -> Failure | None:
    """A failure when a message of the step is missing from its whole render, or the new ones do not end it in order."""
    wanted = list(words_of(step.messages))
    rendered = words_in(whole)
    counts = Counter(rendered)
    lost = next((word for word in wanted if not word.soft and not counts[word]), None)
    if lost is not None:
        return replace(_failure(step, "content-loss", f"{lost} is lost", None), diff=_end_without(step, whole, lost))
    new = list(words_of(step.appended))
    again = next((word for word in new if counts[word] > 1), None)
    if again is not None:
        return _failure(step, "content-order", f"{again} is rendered {counts[again]} times", None)
    old = [word for word in dict.fromkeys(rendered) if word in set(wanted) - set(new) and not word.soft]
    tail = rendered[rendered.index(old[-1]) + 1 :] if old else rendered
    if [word for word in tail if word in new] == new:
        return None
    early = next((word for word in new if word not in tail), None)
    if early is None:
        return _failure(step, "content-order", f"{new[0]} and what follows it are reordered", None)
    return _failure(step, "content-order", f"{early} is moved before {old[-1]}", _where_moved(step, whole, early))


def _content(step: Step, whole: str) -> Failure | None:
    """What became of the words: those that moved from where they stood name the cause better than what is lost."""
    try:
        closed = step.closed()
    except TemplateError:
        closed = ""
    before = [word for word in dict.fromkeys(words_in(closed)) if not word.soft]
    after = [word for word in dict.fromkeys(words_in(whole)) if not word.soft]
    gone = next((word for word in before if word not in after), None)
    if gone is not None:
        reason = f"{gone} disappears when messages are added"
        return _failure(step, "content-loss", reason, Divergence.between(whole, closed))
    stays = [word for word in after if word in before]
    if stays != before:
        moved = _moved(before, stays)
        return _failure(step, "strict-prefix", f"{moved} moves", Divergence.between(whole, closed))
    loss = lost_or_moved(step, whole)
    if loss is not None:
        return loss
    schema = [sum(word.stem == "schema" for word in words_in(text)) for text in (closed, whole)]
    if closed and schema[1] > schema[0]:
        return _failure(step, "content-order", "the tools block is repeated", Divergence.between(whole, closed))
    return None


def _moved(before: Sequence[Word], after: Sequence[Word]) -> Word:
    """The word without which the orders are equal; where several are, the tools or the system prompt moved."""
    for word in sorted(before, key=lambda word: word.stem not in ("schema", "rule")):
        if [other for other in before if other != word] == [other for other in after if other != word]:
            return word
    return next(one for one, other in zip(before, after, strict=True) if one != other)


def _earlier_text(step: Step, whole: str) -> Failure | None:
    """A failure when the text that asked for the turn is no prefix of the whole render, reasoning left aside."""
    for prompt, full in step.without_reasoning():
        found = _prefix(step, prompt, full, "the template changes earlier text when messages are added")
        if found is not None:
            return found
    if any(message["role"] == "assistant" for message in step.earlier):
        return None  # what a template strips from earlier turns is theirs: sampled ids keep it
    try:
        prompt = step.prompt()
    except TemplateError:
        return None
    return _prefix(step, prompt, whole, "the template changes earlier text when a turn that has reasoning is followed")


def _prefix(step: Step, prompt: str, whole: str, reason: str) -> Failure | None:
    opened = len(step.chat.deriver.prefill_of(prompt))
    agreed = shared_prefix(prompt, whole)
    if agreed >= len(prompt) - opened:
        return None
    if agreed >= len(step.before_prompt()):
        reason = "the generation prompt writes what history does not show at the start of the turn"
    elif agreed > max((prompt.find(word.text) for word in words_of(step.earlier[:-1])), default=0):
        reason = "the last message before a turn is written otherwise once something follows it"
    return _failure(step, "strict-prefix", reason, Divergence.between(whole, prompt))


def _end_of_turn(step: Step, whole: str) -> Failure | None:
    said = list(words_of([step.turn])) or list(words_of(step.earlier))
    last = max((whole.find(word.text) + len(word.text) for word in said), default=0)
    first = min((whole.find(word.text) for word in words_of(step.appended)), default=len(whole))
    between = whole[last:first]
    if not last or any(stop in between for stop in step.chat.profile.stops):
        return None
    where = Divergence(offset=last, before=whole[max(0, last - 60) : last], expected=between, found="a stop token")
    return _failure(step, "end-of-turn", "the template writes no stop token after the turn", where)


def _raises(step: Step, refusal: TemplateError) -> Failure:
    try:
        step.closed()
    except TemplateError:
        return _failure(step, "template-raises", f"the turn is refused: {refusal}", None)
    return _failure(step, "template-raises", str(refusal), None)


def _end_without(step: Step, whole: str, lost: Word) -> tuple[str, ...]:
    """What is expected somewhere, and how the whole render ends."""
    end = shown(whole[-120:], step.chat.vocabulary.marker)
    return f"expected somewhere: {lost.text}", f"the whole render ends: {end}"


def _where_moved(step: Step, whole: str, word: Word) -> Divergence:
    at = whole.find(word.text)
    try:
        prompt = step.prompt()
    except TemplateError:
        prompt = ""
    if at < 0 or not prompt:
        return Divergence(offset=at, before=whole[max(0, at - 60) : at], expected=whole[at : at + 60], found="")
    return Divergence.between(whole, prompt)


def _failure(step: Step, rule: str, reason: str, divergence: Divergence | None) -> Failure:
    marker = step.chat.vocabulary.marker
    return Failure(
        rule=rule,
        shape=step.shape,
        reason=reason,
        cure=RULES[rule].cure,
        divergence=divergence,
        diff=() if divergence is None else diff_lines(divergence, marker),
    )
