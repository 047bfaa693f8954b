"""The transcript agrees with the whole render everywhere outside what was sampled."""

from miles_tito.compare import Kind
from miles_tito.verify.cause import cause_of
from miles_tito.verify.conversation import Grown
from miles_tito.verify.diff import diff_lines
from miles_tito.verify.report import Failure


def check(grown: Grown) -> Failure | None:
    """A failure under `strict-prefix`, or under the rule of the cause that whole renders show."""
    chat = grown.step.chat
    first = grown.report.first
    if first is None or first.kind is Kind.ASSISTANT_TEXT:
        return None
    return cause_of(grown.step) or Failure(
        rule="strict-prefix",
        shape=grown.step.shape,
        reason=f"the transcript differs from the whole render ({str(first.kind).replace('_', ' ')})",
        divergence=first.divergence,
        diff=diff_lines(first.divergence, chat.vocabulary.marker),
    )
