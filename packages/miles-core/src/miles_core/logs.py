"""Log lines that say which process speaks."""

import logging
import sys
from typing import TextIO


class RoleFormatter(logging.Formatter):
    """`12:01:07 W router/1 miles_router.pool: worker quarantined`: time, level, role and rank, logger, message."""

    def __init__(self, role: str, *, rank: int | None = None) -> None:
        who = role if rank is None else f"{role}/{rank}"
        super().__init__(f"%(asctime)s %(levelname).1s {who.replace('%', '%%')} %(name)s: %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """Every line of a message of several lines carries the prefix, so that interleaved processes stay apart."""
        first, *rest = super().format(record).split("\n")
        prefix = first[: len(first) - len(record.getMessage().split("\n", 1)[0])]
        return "\n".join([first, *(prefix + line for line in rest)])


def configure(
    role: str, *, rank: int | None = None, level: int | str = logging.INFO, stream: TextIO | None = None
) -> logging.Handler:
    """Send this process's log lines to `stream` (stderr when None) under its role; call once, at its start.

    A second call replaces the first. The handler is returned so that a test or an embedding program can remove it.
    """
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h.formatter, RoleFormatter)]:
        root.removeHandler(old)
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(RoleFormatter(role, rank=rank))
    root.addHandler(handler)
    root.setLevel(level)
    for chatty in ("httpx", "httpcore"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    return handler
