"""One connection to a worker: sends a request, parses an answer, and tells its reader once for every read."""

import asyncio
from typing import Any, Protocol

import httptools

from miles_router.headers import Field

HEAD_BYTES = 1 << 16
"""Largest head of an answer."""


class AnswerReader(Protocol):
    """Who sent the request on a connection."""

    def progress(self) -> None:
        """More of the answer came: its head, its body, its end."""

    def lost(self) -> None:
        """No more will come, though the answer is not complete; `failure` says why."""

    def worker_is_slow(self) -> None:
        """The worker does not read the request as fast as it is written."""

    def worker_reads_on(self) -> None:
        """The worker reads again."""


class Connection(asyncio.Protocol):
    """One exchange at a time. Between exchanges it has no reader and must stay silent.

    failure: why nothing more will come. touched: when something last went over it, by the loop's clock.
    """

    def __init__(self) -> None:
        self._transport: Any = None
        self._parser: Any = httptools.HttpResponseParser(self)
        self._loop = asyncio.get_running_loop()
        self.failure: str | None = None
        self.reader: AnswerReader | None = None
        self.exchanges = 0
        """Requests it was given so far."""
        self.touched = 0.0
        self.paused = False
        self._keep_alive = False
        self.complete = True
        self._begin_answer(head_only=False)

    def _begin_answer(self, *, head_only: bool) -> None:
        self._head_only = head_only
        self._parts: list[bytes] = []
        self.received = 0
        self._unbodied = 0
        """Bytes since the head or the last piece of the body."""
        self.status = 0
        self.headers: list[Field] = []
        self.length: int | None = None
        self.has_head = False

    @property
    def reusable(self) -> bool:
        """True when the last exchange ended cleanly and the worker keeps the connection."""
        return self.complete and self._keep_alive and self.failure is None

    def begin(self, request: bytes, reader: AnswerReader, *, head_only: bool) -> None:
        """Write a request, or its beginning. head_only: the answer has no body whatever its head says."""
        self._begin_answer(head_only=head_only)
        self.complete = False
        self.reader = reader
        self.exchanges += 1
        self.touched = self._loop.time()
        self._transport.write(request)

    def write(self, data: bytes) -> None:
        """Write more of the request."""
        self.touched = self._loop.time()
        self._transport.write(data)

    def take(self) -> bytes:
        """What of the body has come and was not taken yet."""
        parts = self._parts
        if not parts:
            return b""
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        self._parts = []
        return data

    def pause(self) -> None:
        """Hold the worker back."""
        if not self.paused and self.failure is None:
            self.paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Let the worker send on."""
        if self.paused:
            self.paused = False
            self.touched = self._loop.time()
            if self.failure is None:
                self._transport.resume_reading()

    def cut(self) -> None:
        """Close without ceremony; the reader hears nothing of it."""
        self.reader = None
        if self.failure is None:
            self.failure = "the connection was closed here"
            if self._transport is not None:
                self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A connection came about."""
        self._transport = transport
        if self.failure is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        reader = self.reader
        if reader is None:
            # Nobody asked: whatever this is, the connection cannot be trusted with the next call.
            self.cut()
            return
        self.touched = self._loop.time()
        self.received += len(data)
        self._unbodied += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, ValueError) as error:
            self._fail(f"not HTTP: {error}")
            return
        if self.has_head and not self.complete and self._unbodied > HEAD_BYTES:
            self._fail(f"more than {HEAD_BYTES} bytes of an answer without any of its body")
        elif self.has_head:
            reader.progress()
        elif self.received > HEAD_BYTES:
            self._fail(f"a head of more than {HEAD_BYTES} bytes")

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is gone."""
        reader = self.reader
        ended = self.has_head and error is None and self.failure is None and self._ends_at_close()
        if self.failure is None:
            self.failure = str(error) if error else "the connection was closed"
        if reader is None:
            return
        if ended and not self.complete:
            self.complete = True
            reader.progress()
        elif not self.complete:
            self.reader = None
            reader.lost()

    def pause_writing(self) -> None:
        """The worker does not read as fast as is written."""
        if self.reader is not None:
            self.reader.worker_is_slow()

    def resume_writing(self) -> None:
        """The worker reads again."""
        if self.reader is not None:
            self.reader.worker_reads_on()

    # What the parser calls.

    def on_message_begin(self) -> None:
        """An answer begins; a second one to the same request ends the connection, and is nobody's."""
        if self.complete:
            raise ValueError("an answer that nobody asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        """One field of the head."""
        if self.has_head:
            return  # a trailer must not pass for a field of the head
        name = name.lower()
        self.headers.append((name, value))
        if name == b"content-length":
            self.length = int(value)
        elif name == b"transfer-encoding" and value.strip().lower() != b"chunked":
            raise ValueError("a transfer coding other than chunked")

    def on_headers_complete(self) -> None:
        """The head is whole; one of the 1xx kind only announces the real one."""
        self.status = self._parser.get_status_code()
        if self.status > 599:
            raise ValueError("a status that has no meaning")
        if self.status < 200:
            self.headers = []
            self.length = None
            return
        self.has_head = True
        self._unbodied = 0
        self._keep_alive = self._parser.should_keep_alive()
        if self._head_only:
            # The parser would wait for the body that the head speaks of.
            self._keep_alive = False
            self.complete = True

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        self._unbodied = 0
        self._parts.append(data)

    def on_message_complete(self) -> None:
        """The answer is whole."""
        if self.has_head:
            self.complete = True

    def _ends_at_close(self) -> bool:
        chunked = any(name == b"transfer-encoding" for name, _ in self.headers)
        return self.length is None and not chunked

    def _fail(self, reason: str) -> None:
        self.failure = reason
        self._transport.abort()
        reader = self.reader
        if reader is None:
            return
        if self.complete:  # what is wrong came behind a whole answer
            reader.progress()
        else:
            self.reader = None
            reader.lost()
