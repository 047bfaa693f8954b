"""The ids that a policy which writes exactly as the template does would sample for a turn."""

from collections.abc import Mapping, Sequence
from typing import Any

from miles_tito.derive import render_marked
from miles_tito.errors import TemplateError
from miles_tito.tokenizer import ChatTokenizer
from miles_tito.transcript import Transcript


def turn_ids(
    chat: ChatTokenizer, transcript: Transcript, message: Mapping[str, Any], *, truncated: bool = False
) -> list[int]:
    """Ids of the message as the template writes it after this transcript, with the stop; without it when truncated.

    The stop is the one that the template writes for this turn, else the first it is known to write. A template that
    refuses the message, or rewrites what came before it, leaves the plain text of the content.
    """
    text, written = _written(chat, transcript, message)
    ids = chat.vocabulary.encode(text)[0]
    ends = [end for stop in (written, *chat.profile.stops) if (end := chat.vocabulary.id_of(stop)) is not None]
    return ids if truncated else [*ids, *ends[:1]]


def _written(chat: ChatTokenizer, transcript: Transcript, message: Mapping[str, Any]) -> tuple[str, str]:
    """The text of the turn, and the stop after it; "" where the template writes none."""
    before = _render(chat, transcript, transcript.messages, generation_prompt=True)
    prefill = chat.deriver.prefill_of(before)
    before = before[: len(before) - len(prefill)]
    whole = _render(chat, transcript, [*transcript.messages, message], generation_prompt=False)
    if not before or not whole.startswith(before):
        return str(message.get("content") or ""), ""
    text = whole[len(before) :].removeprefix(prefill).rstrip()
    for stop in chat.profile.stops:
        if text.endswith(stop):
            return text.removesuffix(stop), stop
    return text, ""


def _render(
    chat: ChatTokenizer, transcript: Transcript, messages: Sequence[Mapping[str, Any]], *, generation_prompt: bool
) -> str:
    try:
        return render_marked(
            chat.template,
            chat.vocabulary.marker,
            messages,
            tools=transcript.tools,
            generation_prompt=generation_prompt,
            now=transcript.now,
        )
    except TemplateError:
        return ""
