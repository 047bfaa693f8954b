"""Which headers travel through the proxy."""

from collections.abc import Sequence

Field = tuple[bytes, bytes]

HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer trailers"
    b" transfer-encoding upgrade".split()
)
"""Meant for one connection, never for the next (RFC 9110, section 7.6.1)."""

REQUEST_DROPS = HOP_BY_HOP | {b"host", b"content-length", b"expect"}
"""Host and length are written anew for the worker; 100-continue is answered by this server."""

ANSWER_DROPS = HOP_BY_HOP | {b"content-length", b"server", b"date"}
"""Length, server and date are this server's own."""


_PLAIN = frozenset({b"keep-alive", b"close"})
"""What most Connection fields hold; it names no other field."""


def passed_on(fields: Sequence[Field], drops: frozenset[bytes]) -> list[Field]:
    """The fields without `drops` and without those that a Connection field names. Names are in lower case."""
    kept = [field for field in fields if field[0] not in drops]
    if len(kept) < len(fields):
        named = {
            part.strip().lower() for name, value in fields if name == b"connection" for part in value.split(b",")
        } - _PLAIN
        if named:
            return [field for field in kept if field[0] not in named]
    return kept
