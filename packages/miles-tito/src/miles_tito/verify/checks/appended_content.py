"""Every message of the conversation is in the whole render, the new ones at its end, in order, once."""

from miles_tito.verify.cause import lost_or_moved
from miles_tito.verify.conversation import Grown
from miles_tito.verify.report import Failure


def check(grown: Grown) -> Failure | None:
    """A failure under `content-loss` or `content-order`."""
    return lost_or_moved(grown.step, grown.whole)
