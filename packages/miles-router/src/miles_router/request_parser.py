"""From the bytes of a connection to its requests: heads within limits, bodies as they come, trailers dropped."""

from typing import Any, Protocol

import httptools

from miles_router.front_request import FrontRequest
from miles_router.headers import Field

HEAD_BYTES = 1 << 16
"""Largest head of a request: its target and fields. As much may come after a body without being any of it."""


class RequestError(Exception):
    """What came is no request that can be read. status and message: of the answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class RequestSink(Protocol):
    """Who gets the requests."""

    def head_came(self, request: FrontRequest) -> None:
        """The head is whole."""

    def body_came(self, data: bytes) -> None:
        """A piece of the body."""

    def request_ends(self) -> None:
        """The request is whole."""


class RequestParser:
    """Parses what a connection brings, in order. An offer of another protocol is ignored; its request is read as usual.

    pending: about how many bytes of a head have come that is not whole, 0 between requests.
    """

    def __init__(self, sink: RequestSink) -> None:
        self._sink = sink
        self._parser: Any = httptools.HttpRequestParser(self)
        self.pending = 0
        self._target = b""
        self._headers: list[Field] = []
        self._size = 0
        """Of the head, or of the trailers."""
        self._in_body = False
        self._offering: bytes | None = None
        """The head of a request that offers another protocol, without the offer."""
        self._fault: RequestError | None = None

    def feed(self, data: bytes) -> bool:
        """Take bytes in; False when nothing after them can be read. RequestError for what is no request."""
        self.pending += len(data)
        rest: bytes | memoryview = data
        try:
            while (offset := self._feed(rest)) is not None:
                if self._offering is None:
                    return False  # CONNECT: what follows is not HTTP
                # The parser takes such a request to end with its head, so the head is read again without the offer.
                head, self._offering = self._offering, None
                self._parser = httptools.HttpRequestParser(self)
                self._parser.feed_data(head)
                rest = memoryview(rest)[offset:]
        except (httptools.HttpParserError, ValueError) as error:
            told = f"expected an HTTP/1.1 request, found something else: {error}."
            raise self._fault or RequestError(400, told) from None
        if self.pending > HEAD_BYTES:
            raise self._too_large()
        return True

    def _feed(self, data: bytes | memoryview) -> int | None:
        """None, or where in the data a protocol was offered."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            return int(offer.args[0])
        return None

    def _too_large(self) -> RequestError:
        where = "after the body" if self._in_body else "as the head"
        return RequestError(431, f"expected at most {HEAD_BYTES} bytes {where} of a request, found more.")

    # What the parser calls. An exception here ends its work; it is told by `_fault`.

    def on_message_begin(self) -> None:
        """A request begins."""
        self._target = b""
        self._headers = []
        self._size = 0
        self.pending = self.pending or 1

    def on_url(self, url: bytes) -> None:
        """The request's target, or a piece of it."""
        self._target += url
        self._size += len(url)
        if self._size > HEAD_BYTES:
            self._fail(self._too_large())

    def on_header(self, name: bytes, value: bytes) -> None:
        """One field of the head, or a trailer: it must not pass for a field of the head."""
        self._size += len(name) + len(value) + 4
        if self._size > HEAD_BYTES:
            self._fail(self._too_large())
        if not self._in_body:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is whole."""
        parser, headers = self._parser, self._headers
        method, version = parser.get_method(), parser.get_http_version()
        if parser.should_upgrade() and method != b"CONNECT":
            lines = [b"%b %b HTTP/%b" % (method, self._target, version.encode())]
            lines += [name + b": " + value for name, value in headers if name != b"upgrade"]
            self._offering = b"\r\n".join([*lines, b"\r\n"])
            return
        hosts = [name for name, _ in headers].count(b"host")
        if hosts != 1 and version == "1.1":
            self._fail(RequestError(400, f"expected one Host field in an HTTP/1.1 request, found {hosts}."))
        request = FrontRequest(method, self._target, headers, version)
        request.keep_alive &= parser.should_keep_alive()
        self._in_body, self._size, self.pending = True, 0, 0
        self._sink.head_came(request)

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        self.pending = 0
        self._sink.body_came(data)

    def on_message_complete(self) -> None:
        """The request is whole."""
        if self._offering is None:
            self._in_body, self.pending = False, 0
            self._sink.request_ends()

    def _fail(self, fault: RequestError) -> None:
        self._fault = fault
        raise fault
