"""One caller's connection: HTTP/1.1 requests in their order, each proxied directly or given to the app."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote_to_bytes

from miles_router.answers import error_answer
from miles_router.asgi_call import AsgiCall
from miles_router.front import Front
from miles_router.front_request import FrontRequest, answer_head
from miles_router.headers import Field
from miles_router.request_parser import RequestError, RequestParser

DISCARD_BYTES = 1 << 23
"""Of a body that nobody wants, so much is read to let its sender see the answer."""
LAST_CALL_S = 0.1
"""So long an idle connection may still bring a request when the server ends."""
NEVER = float("inf")


class FrontConnection(asyncio.Protocol):
    """Parses requests; writes answers as an exchange's or an app call's `Caller`.

    deadline: when the connection is given up, by the loop's clock; the answer to a request has none here, its worker
    is watched instead.
    """

    def __init__(self, front: Front) -> None:
        self.front = front
        self._loop = asyncio.get_running_loop()
        self.transport: Any = None
        self._parser = RequestParser(self)
        self.deadline = NEVER
        self._incoming: FrontRequest | None = None
        """The request whose body is being read."""
        self._current: FrontRequest | None = None
        """The request that is being answered."""
        self._line: deque[FrontRequest] = deque()
        """Requests that came before the answer to an earlier one: their turn comes."""
        self._held = False
        self._reading = True
        self._closing = False
        """True when nothing more is read."""
        self._draining = False
        """True when the server ends: what is under way is answered, and the connection closed."""
        self._gone = False
        self._head = b""
        """Of the answer: written with the first piece of its body."""
        self._chunked = False
        self._bodiless = False
        self._writable = True
        self.can_write = asyncio.Event()
        self.can_write.set()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A caller came."""
        self.transport = transport
        self.deadline = self._loop.time() + self.front.config.head_timeout_s
        if not self.front.opened(self):
            self._give_up(503, "the router has as many connections as it may have.", {"Retry-After": "1"})

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if self._closing and self._incoming is None:
            return
        incoming = self._incoming
        if incoming is None:
            if not self._parser.pending and self._current is None:
                self.deadline = self._loop.time() + self.front.config.head_timeout_s
        elif incoming is self._current and not incoming.answered:
            self.deadline = self._loop.time() + self.front.config.body_timeout_s
        try:
            if not self._parser.feed(data):
                self._closing = True
        except RequestError as error:
            self._bad_request(error.status, error.message)
            return
        if self._line:
            self._update_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """The caller is gone."""
        self._gone = self._closing = True
        self.front.closed(self)
        self._line.clear()
        self.can_write.set()
        request = self._current
        if request is not None:
            if request.exchange is not None:
                request.exchange.caller_gone()
            if request.app_call is not None:
                request.app_call.caller_gone()

    def pause_writing(self) -> None:
        """The caller does not read as fast as is written."""
        self._writable = False
        self.can_write.clear()
        self.deadline = self._loop.time() + self.front.config.body_timeout_s
        if self._current is not None and self._current.exchange is not None:
            self._current.exchange.caller_is_slow()

    def resume_writing(self) -> None:
        """The caller reads again."""
        self._writable = True
        self.can_write.set()
        self.deadline = NEVER if self._current is not None else self.deadline
        if self._current is not None and self._current.exchange is not None:
            self._current.exchange.caller_reads_on()

    # What the server and its front call.

    def shutdown(self) -> None:
        """End when the answer under way is complete; a request that is on its way here is still answered."""
        self._draining = True
        self._loop.call_later(LAST_CALL_S, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self._current is None and not self._parser.pending and not self._gone:
            self.transport.close()

    def expire(self) -> None:
        """A deadline passed."""
        request = self._current
        self.deadline = NEVER
        idle = not self._parser.pending if request is None else request.answered
        if idle or self._closing or not self._writable:
            self.cut()
        else:
            self._bad_request(408, "the request did not come in time.")

    def cut(self) -> None:
        """Close without ceremony."""
        self._closing = True
        if self.transport is not None:
            self.transport.abort()

    # What the parser calls.

    def head_came(self, request: FrontRequest) -> None:
        """See `RequestSink`."""
        self._incoming = request
        if self._current is None:
            self._open(request)
        else:
            self._line.append(request)

    def body_came(self, data: bytes) -> None:
        """See `RequestSink`."""
        request = self._incoming
        assert request is not None
        if request is self._current:
            self._take(request, data)
        else:
            request.parts.append(data)

    def request_ends(self) -> None:
        """See `RequestSink`."""
        request, self._incoming = self._incoming, None
        if request is not None:
            request.complete = True
            if request is self._current:
                self._completed(request)

    # From a request to who answers it.

    def _open(self, request: FrontRequest) -> None:
        """Its turn has come: its head is known, its body may not be."""
        self._current = request
        front = self.front
        self.deadline = self._loop.time() + front.config.body_timeout_s
        if (fault := request.fault()) is not None:
            request.keep_alive = False
            self._refuse(request, *fault)
            return
        path = request.path()
        direct = front.is_direct(unquote_to_bytes(path) if b"%" in path else path)
        if direct and (refusal := front.gate.refusal({"headers": request.headers})) is not None:
            self._refuse(request, refusal.status, refusal.message, dict(refusal.headers))
            return
        if request.expects_continue and not request.complete:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not direct:
            request.app_call = AsgiCall(self, request, path)

    def _take(self, request: FrontRequest, data: bytes) -> None:
        """A piece of the current request's body."""
        config = self.front.config
        request.size += len(data)
        if request.refused or request.answered:
            request.discarded += len(data)
            if request.discarded > DISCARD_BYTES:
                self.cut()
        elif request.app_call is not None:
            request.app_call.more_body(data)
        elif request.size > config.body_limit_bytes:
            message = f"expected a body of at most {config.body_limit_bytes} bytes, found more."
            if request.exchange is None:
                self._refuse(request, 413, message)
            else:
                request.refused = True
                request.exchange.refuse(413, message)
        elif request.exchange is not None:
            request.exchange.more_body(data, last=False)
        else:
            request.parts.append(data)
            if request.size > config.replay_bytes:
                self._start(request)

    def _completed(self, request: FrontRequest) -> None:
        """The current request's body is whole."""
        self.deadline = NEVER
        if request.answered:
            self._next()
        elif request.app_call is not None:
            request.app_call.body_ends()
        elif request.exchange is not None:
            request.exchange.more_body(b"", last=True)
        elif not request.refused:
            self._start(request)

    def _start(self, request: FrontRequest) -> None:
        proxy = self.front.proxy
        if proxy is None:
            self._refuse(request, 503, "the router is not running.", {"Retry-After": "1"})
            return
        exchange = request.exchange = proxy.exchange(self, request.method, request.target, request.headers)
        exchange.start(request.take(), length=request.length, complete=request.complete)

    def _refuse(self, request: FrontRequest, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        request.refused = True
        fields, body = error_answer(status, message, headers)
        if not request.complete and (request.chunked or (request.length or 0) > DISCARD_BYTES):
            request.keep_alive = False
        self.begin(status, fields, len(body))
        self.write(body, last=True)

    # The answer.

    def begin(self, status: int, headers: Sequence[Field], length: int | None) -> None:
        """See `Caller`."""
        request = self._current
        assert request is not None
        if self._closing or self._draining:
            request.keep_alive = False
        self._bodiless = request.method == b"HEAD" or status in (204, 304)
        self._chunked = length is None and not self._bodiless and request.http_version == "1.1"
        framing = None
        if self._chunked:
            framing = b"transfer-encoding: chunked"
        elif length is not None and status != 204:
            framing = b"content-length: %d" % length
        self._head = answer_head(status, headers, framing, self.front.date_line, close=not request.keep_alive)
        if not self._writable and request.exchange is not None:
            # An earlier answer still waits to be read.
            request.exchange.caller_is_slow()

    def write(self, data: bytes, *, last: bool) -> None:
        """See `Caller`."""
        if self._gone:
            return
        head = self._head
        if self._bodiless:
            data = b""
        elif self._chunked:
            if data:
                data = b"%b%x\r\n%b\r\n" % (head, len(data), data)
                head = b""
            if last:
                data += b"0\r\n\r\n"
        if head or data:
            self._head = b""
            self.transport.write(head + data if head else data)
        if last:
            self._answered()

    def broken(self) -> None:
        """See `Caller`."""
        self._closing = True
        if self._gone:
            return
        if self._chunked:
            # Without the last chunk it does not look whole; what was written is still delivered.
            self.transport.close()
        else:
            self.transport.abort()

    def hold(self) -> None:
        """See `Caller`."""
        self._held = True
        self._update_reading()

    def carry_on(self) -> None:
        """See `Caller`."""
        self._held = False
        self._update_reading()

    def _answered(self) -> None:
        request = self._current
        assert request is not None
        request.answered = True
        if request.complete:
            self._next()
        else:
            # The rest of a body that nobody needs is read, so that the caller gets to see the answer.
            self.carry_on()
            self.deadline = self._loop.time() + self.front.config.head_timeout_s

    def _next(self) -> None:
        """The current request is over."""
        request = self._current
        self._current = None
        config = self.front.config
        if self._closing or self._draining or request is None or not request.keep_alive:
            self._closing = True
            self.deadline = self._loop.time() + config.body_timeout_s  # to read what was written
            self.transport.close()
            return
        if self._line:
            # From the loop, so that a thousand short requests in one read do not nest a thousand deep.
            self._loop.call_soon(self._next_in_line)
        elif self._parser.pending:
            self.deadline = self._loop.time() + config.head_timeout_s
        else:
            self.deadline = self._loop.time() + config.keep_alive_s

    def _next_in_line(self) -> None:
        if not self._line or self._current is not None or self._gone:
            return
        request = self._line.popleft()
        self._update_reading()
        parts, request.parts = request.parts, []
        complete, request.complete = request.complete, False
        self._open(request)
        for part in parts:
            self._take(request, part)
        request.complete = complete
        if complete and request is self._current:
            self._completed(request)

    def _update_reading(self) -> None:
        reading = not self._held and not self._line
        if reading != self._reading and not self._gone:
            self._reading = reading
            if reading:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    def _bad_request(self, status: int, message: str) -> None:
        """What came is no request, or not the rest of one: answer if that is still possible, and close."""
        current = self._current
        if current is not None and current is not self._incoming:
            # An earlier request is still being answered; it ends properly, nothing after it does.
            self._closing = True
            self._line.clear()
            return
        if current is not None and current.answered:
            # One request gets one answer; it is written, and whatever its rest was to be, nobody needs it.
            self._closing = True
            self.transport.close()
            return
        if current is not None and (current.exchange is not None or current.app_call is not None):
            self.cut()
            return
        self._give_up(status, message)

    def _give_up(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        """Answer and close, whatever was going on."""
        request = self._current = FrontRequest(b"GET", b"/", [], "1.1")
        request.complete, request.keep_alive = True, False
        self._incoming = None
        self._refuse(request, status, message, headers)
