"""One request on a caller's connection, and the head of its answer."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING

from miles_router.headers import Field

if TYPE_CHECKING:
    from miles_router.asgi_call import AsgiCall
    from miles_router.exchange import Exchange


_PHRASES = {int(status): status.phrase.encode() for status in HTTPStatus}
_STATUS_LINES = {status: b"HTTP/1.1 %d %b" % (status, _PHRASES.get(status, b"")) for status in range(100, 1000)}


def answer_head(
    status: int, headers: Sequence[Field], framing: bytes | None, date_line: bytes, *, close: bool
) -> bytes:
    """The head of an answer. framing: the field that says how long the body is, None without a body or field."""
    lines = [_STATUS_LINES[status]]
    lines += [name + b": " + value for name, value in headers]
    if framing is not None:
        lines.append(framing)
    lines.append(date_line)
    if close:
        lines.append(b"connection: close")
    lines.append(b"\r\n")
    return b"\r\n".join(lines)


class FrontRequest:
    """One request as far as it has come, and who answers it."""

    __slots__ = (
        "answered",
        "app_call",
        "chunked",
        "complete",
        "discarded",
        "exchange",
        "expects_continue",
        "headers",
        "http_version",
        "keep_alive",
        "length",
        "method",
        "parts",
        "refused",
        "size",
        "target",
    )

    def __init__(self, method: bytes, target: bytes, headers: list[Field], http_version: str) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.http_version = http_version
        self.keep_alive = http_version == "1.1"  # an older caller would have to be told of a kept connection
        self.length: int | None = None
        self.chunked = False
        self.expects_continue = False
        for name, value in headers:
            if name == b"content-length":
                self.length = int(value)
            elif name == b"transfer-encoding":
                self.chunked = True
            elif name == b"expect":
                self.expects_continue = value.lower() == b"100-continue"
        self.parts: list[bytes] = []
        """Of the body: what came and was not handed on."""
        self.size = 0
        self.complete = False
        self.discarded = 0
        self.exchange: Exchange | None = None
        self.app_call: AsgiCall | None = None
        self.refused = False
        self.answered = False

    def take(self) -> bytes:
        """What of the body came and was not handed on."""
        parts, self.parts = self.parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def fault(self) -> tuple[int, str] | None:
        """Status and message for a request that is proper HTTP, but nothing that is served here."""
        if self.method == b"CONNECT":
            return 405, "this is no forward proxy: CONNECT is not served."
        codings = [value for name, value in self.headers if name == b"transfer-encoding"] if self.chunked else []
        if any(value.strip().lower() != b"chunked" for value in codings):
            return 501, "expected 'chunked' as the only transfer coding, found another one."
        return None

    def path(self) -> bytes:
        """The path of the target. A target in absolute form is cut to its path and query; `*` has no path."""
        if self.target.startswith(b"/"):
            return self.target.partition(b"?")[0]
        if b"://" not in self.target:
            return b"/" + self.target
        rest = self.target.partition(b"://")[2]
        authority = rest.partition(b"?")[0].partition(b"/")[0]
        self.target = rest[len(authority) :]
        if not self.target.startswith(b"/"):
            self.target = b"/" + self.target
        return self.target.partition(b"?")[0]
