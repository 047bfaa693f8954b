"""Which headers travel through the proxy."""

from collections.abc import Iterable

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


def passed_on(fields: Iterable[Field], drops: frozenset[bytes]) -> list[Field]:
    """The fields, names in lower case, without `drops` and without those that a Connection field names."""
    lowered = [(name.lower(), value) for name, value in fields]
    named = {part.strip().lower() for name, value in lowered if name == b"connection" for part in value.split(b",")}
    unwanted = drops | named if named else drops
    return [(name, value) for name, value in lowered if name not in unwanted]
