"""A whole transcript seen as texts, and its comparison with a canonical render."""

from collections.abc import Collection

from miles_core.sample import Finish
from miles_tito.compare import Difference, Kind, Report, report_of
from miles_tito.derive import Deriver, History, render_marked
from miles_tito.errors import Divergence, TemplateError
from miles_tito.render import ChatTemplate
from miles_tito.transcript import Piece, Transcript
from miles_tito.vocabulary import Vocabulary


def history_of(transcript: Transcript, vocabulary: Vocabulary, deriver: Deriver, stop_ids: Collection[int]) -> History:
    """Everything up to the last sampled turn, which is the transcript's last step."""
    pieces = transcript.pieces()
    fixed, sampled = _texts(pieces, vocabulary, deriver, stop_ids)
    messages = tuple(message for piece in pieces[:-1] for message in piece.messages)
    return History(messages=messages, fixed=fixed, sampled=sampled)


def verify(
    transcript: Transcript,
    template: ChatTemplate,
    vocabulary: Vocabulary,
    deriver: Deriver,
    stop_ids: Collection[int],
) -> Report:
    """The transcript against a render of all its messages with its own tools, arguments and clock.

    A last turn that the template refuses to render differs softly; all before it is compared as ever. A transcript that
    awaits a turn and that the template refuses as a whole differs hard, and from the start: nothing confirms any of it.
    """
    pieces = transcript.pieces()
    fixed, sampled = _texts(pieces, vocabulary, deriver, stop_ids)
    try:
        canonical = _canonical(transcript, template, deriver)
    except TemplateError as error:
        if transcript.parent is None:
            raise
        if transcript.awaits_turn:
            refused = Divergence(offset=0, before="", expected=str(error), found=fixed[-1][:60])
            return report_of([Difference(kind=Kind.NON_ASSISTANT_TEXT, turn=0, divergence=refused)])
        before = verify(transcript.parent, template, vocabulary, deriver, stop_ids)
        refused = Divergence(offset=0, before="", expected=str(error), found=sampled[-1][:60])
        last = Difference(kind=Kind.ASSISTANT_TEXT, turn=len(sampled) - 1, divergence=refused)
        return report_of([*before.differences, last])
    found = deriver.align(canonical, fixed, sampled)
    differences = [*found.differences, *_fixed_ids(pieces, vocabulary)]
    bodies = found.bodies[: len(sampled)]
    rest, prefill = found.bodies[-1], deriver.prefill_of(fixed[-1])
    if not transcript.awaits_turn:
        bodies = (*bodies[:-1], _closed(rest, deriver))
        differences += deriver.hidden(bodies[-1], sampled[-1], len(sampled) - 1, fixed)
    elif rest != prefill and not found.differences:
        differences.append(_difference(Kind.NON_ASSISTANT_TEXT, len(sampled), rest, prefill))
    missed = {difference.turn for difference in found.differences}
    turns = [piece for piece in pieces if piece.finish is not None]
    for turn, (body, text, piece) in enumerate(zip(bodies, sampled, turns, strict=True)):
        if turn in missed or turn + 1 in missed:
            continue
        start = len(deriver.prefill_of(fixed[turn]))
        if body != text or tuple(vocabulary.encode(body[start:])[0]) != _body(piece, stop_ids):
            differences.append(_difference(Kind.ASSISTANT_TEXT, turn, body, text))
    return report_of(differences)


def _canonical(transcript: Transcript, template: ChatTemplate, deriver: Deriver) -> str:
    return render_marked(
        template,
        deriver.marker,
        transcript.messages,
        tools=transcript.tools,
        generation_prompt=transcript.awaits_turn,
        now=transcript.now,
        joints=deriver.joints,
    )


def _texts(
    pieces: Collection[Piece], vocabulary: Vocabulary, deriver: Deriver, stop_ids: Collection[int]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Fixed texts (whole) and sampled texts (with what the generation prompt opened, without the final stop)."""
    fixed: list[str] = []
    sampled: list[str] = []
    for piece in pieces:
        if piece.text is not None:
            fixed.append(piece.text)
        else:
            text = vocabulary.decode_marked(_body(piece, stop_ids))
            sampled.append(deriver.prefill_of(fixed[-1]) + text)
    return tuple(fixed), tuple(sampled)


def _body(piece: Piece, stop_ids: Collection[int]) -> tuple[int, ...]:
    ids = piece.spans[0].ids
    return ids[:-1] if ids and ids[-1] in stop_ids and piece.finish is not Finish.ABORTED else ids


def _closed(rest: str, deriver: Deriver) -> str:
    """The last turn's text: what stands before the last stop, when only white space follows that."""
    trimmed = rest.rstrip()
    stop = next((stop for stop in deriver.stops if trimmed.endswith(stop)), None)
    return trimmed[: -len(stop)] if stop else rest


def _fixed_ids(pieces: Collection[Piece], vocabulary: Vocabulary) -> list[Difference]:
    """Recorded ids of template text that are not what the text encodes to."""
    differences = []
    turn = 0
    before: tuple[int, ...] = ()
    for piece in pieces:
        ids = tuple(number for span in piece.spans for number in span.ids)
        if piece.text is None:
            turn += 1
            before = ids
            continue
        wanted = tuple(vocabulary.encode(piece.text)[0])
        if turn and before[-1:] == wanted[:1]:
            wanted = wanted[1:]
        if ids != wanted:
            found = vocabulary.decode(ids)
            differences.append(_difference(Kind.NON_ASSISTANT_TEXT, turn, piece.text, found))
    return differences


def _difference(kind: Kind, turn: int, expected: str, found: str) -> Difference:
    return Difference(kind=kind, turn=turn, divergence=Divergence.between(expected, found))
