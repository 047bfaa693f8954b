"""The grown ids are those of the whole render, compared between control tokens."""

from collections.abc import Collection, Sequence
from itertools import zip_longest

from miles_core.sample import Origin
from miles_tito.errors import Divergence
from miles_tito.marks import OPEN
from miles_tito.verify.conversation import Grown
from miles_tito.verify.report import Failure

Pieces = list[tuple[tuple[int, ...], bool]]


def check(grown: Grown) -> Failure | None:
    """A failure under `incremental-ids` where a piece that nobody sampled has other ids in the whole render.

    Only conversations without look-alikes whose every turn is written as the template writes it can be compared so:
    elsewhere the pieces do not correspond, and `strict-prefix` compares texts.
    """
    chat, after = grown.step.chat, grown.after
    if any(OPEN in (piece.text or "") for piece in after.pieces()) or grown.report.soft:
        return None
    controls = frozenset(chat.vocabulary.controls.values())
    whole = _pieces([(number, False) for number in chat.vocabulary.encode(grown.whole)[0]], controls)
    owned = [(number, span.origin is Origin.SAMPLED) for span in after.spans for number in span.ids]
    for (wanted, _), (found, sampled) in zip_longest(whole, _pieces(owned, controls), fillvalue=((), False)):
        if wanted != found and not sampled:
            names = [chat.vocabulary.decode(ids) for ids in (wanted, found)]
            return Failure(
                rule="incremental-ids",
                shape=grown.step.shape,
                reason=f"a piece of text has the ids {list(found)[:8]}, in the whole render {list(wanted)[:8]}",
                divergence=Divergence.between(*names),
            )
    return None


def _pieces(ids: Sequence[tuple[int, bool]], controls: Collection[int]) -> Pieces:
    """Runs of ids between control tokens, with whether any of the run, or of the tokens at its ends, was sampled."""
    pieces: Pieces = []
    run: list[int] = []
    touched = False
    for number, sampled in ids:
        if number in controls:
            pieces += [(tuple(run), touched or sampled), ((number,), sampled)]
            run, touched = [], sampled
        else:
            run.append(number)
            touched = touched or sampled
    return [*pieces, (tuple(run), touched)]
