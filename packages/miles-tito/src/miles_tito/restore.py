"""Transcripts from recorded steps: nothing is rendered or tokenised again, so recorded ids stay what they were."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from miles_core.errors import TokenError
from miles_tito.tokenizer import ChatTokenizer
from miles_tito.transcript import Piece, Transcript
from miles_tito.trust import Trust


def restore_prompt(
    chat: ChatTokenizer, piece: Piece, *, tools: Sequence[Mapping[str, Any]], now: datetime
) -> Transcript:
    """The transcript that `begin` gave when its only piece was this one."""
    _check_text(piece)
    return Transcript(
        _chat=chat,
        _parent=None,
        _piece=piece,
        tools=tuple(tools),
        now=now,
        num_tokens=piece.num_tokens,
        num_messages=len(piece.messages),
        all_sampled=_from_outside(piece),
        trust=Trust(said=chat.phrasebook.fresh([*tools, *piece.messages])),
    )


def restore_append(transcript: Transcript, piece: Piece, *, stop_gave_way: bool) -> Transcript:
    """The transcript that `append` gave when it added this piece.

    stop_gave_way: the stop that was sampled last was taken out for the one that the template writes.
    """
    _check_text(piece)
    if transcript.awaits_turn:
        raise TokenError("expected a transcript whose last step is a sampled turn, found one that awaits a turn.")
    if stop_gave_way:
        transcript = transcript.replace_turn(without_stop(transcript.last))
    said = [*transcript.last.messages, *piece.messages]
    return transcript._with(
        piece,
        awaits_turn=True,
        all_sampled=transcript.all_sampled and _from_outside(piece),
        trust=transcript.trust.hearing(transcript._chat.phrasebook.fresh(said, transcript.trust.said)),
    )


def without_stop(piece: Piece) -> Piece:
    """A sampled piece without its last id, which is kept as `dropped`."""
    span = piece.spans[0]
    if not span.ids:
        raise TokenError("expected a sampled turn with a stop to take out, found one without ids.")
    shorter = replace(span, ids=span.ids[:-1], logprobs=span.logprobs[:-1], weight_versions=span.weight_versions[:-1])
    return replace(piece, spans=(shorter,), dropped=span.ids[-1])


def _check_text(piece: Piece) -> None:
    if piece.text is None or piece.finish is not None:
        raise TokenError("expected a recorded step of template text, found a sampled turn.")


def _from_outside(piece: Piece) -> bool:
    return all(message["role"] != "assistant" for message in piece.messages)
