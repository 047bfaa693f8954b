"""One connection to a worker: a protocol that parses one answer at a time."""

import asyncio
from typing import Any

import httptools

PAUSE_BYTES = 1 << 17
"""Bytes of an answer that may wait for their reader; beyond them the worker is held back."""
HEAD_BYTES = 1 << 16
"""Largest head of an answer."""


class Connection(asyncio.Protocol):
    """Sends one request, parses one answer, and tells whether it can do so again.

    Its reader calls `take` for what has come and `wait` for more. failure: why nothing more will come.
    """

    def __init__(self) -> None:
        self._transport: Any = None
        self._parser: Any = None
        self._changed: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._paused = False
        self.failure: str | None = None
        self._reset(head_only=False)
        self.complete = True

    def _reset(self, *, head_only: bool) -> None:
        self._parts: list[bytes] = []
        self._waiting = 0
        self._head_only = head_only
        self._keep_alive = False
        self.received = 0
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.declared_length: int | None = None
        self.has_head = False
        self.complete = False

    @property
    def reusable(self) -> bool:
        """True when the last exchange ended cleanly and the worker keeps the connection."""
        return self.complete and self._keep_alive and self.failure is None and not self._parts

    def begin(self, request: bytes, *, head_only: bool) -> None:
        """Write the head of a request, or all of it. head_only: the answer has no body whatever its head says."""
        self._reset(head_only=head_only)
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(request)

    async def write(self, data: bytes) -> None:
        """Write more of the request; waits while the worker does not read. ConnectionError when it is gone."""
        if self._writable is not None:
            await self._writable
        if self.failure is not None:
            raise ConnectionError(self.failure)
        self._transport.write(data)

    def take(self) -> bytes:
        """What of the body has come and was not taken yet."""
        if not self._parts:
            return b""
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self._waiting = 0
        if self._paused and self.failure is None:
            self._paused = False
            self._transport.resume_reading()
        return data

    async def wait(self) -> None:
        """Return when something changed: the head, more of the body, its end, or a failure."""
        if self.failure is not None:
            return
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)

    def cut(self) -> None:
        """Close without ceremony."""
        if self.failure is None:
            self._fail("the connection was closed here")
            self._transport.abort()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A connection came about."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        self.received += len(data)
        if self.complete:
            # Nobody asked: whatever this is, the connection cannot be trusted with the next call.
            self.cut()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"not HTTP: {error}")
            self._transport.abort()
            return
        if not self.has_head and self.received > HEAD_BYTES:
            self._fail(f"a head of more than {HEAD_BYTES} bytes")
            self._transport.abort()
        if self._waiting > PAUSE_BYTES and not self._paused and self.failure is None:
            self._paused = True
            self._transport.pause_reading()
        self._notify()

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is gone."""
        if self.has_head and not self.complete and error is None and self._ends_at_close():
            self.complete = True
        self._fail(str(error) if error else "the connection was closed")

    def pause_writing(self) -> None:
        """The worker does not read as fast as is written."""
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """The worker reads again."""
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        """One field of the head."""
        name = name.lower()
        self.headers.append((name, value))
        if name == b"content-length":
            self.declared_length = int(value)

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self.status = self._parser.get_status_code()
        if self.status < 200:
            self.headers = []
            return
        self.has_head = True
        self._keep_alive = self._parser.should_keep_alive()
        if self._head_only:
            self._keep_alive = False
            self.complete = True

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        self._parts.append(data)
        self._waiting += len(data)

    def on_message_complete(self) -> None:
        """The answer is whole; one of the 1xx kind only announces the real one."""
        if self.status >= 200:
            self.complete = True

    def _ends_at_close(self) -> bool:
        chunked = any(name == b"transfer-encoding" for name, _ in self.headers)
        return self.declared_length is None and not chunked

    def _fail(self, reason: str) -> None:
        if self.failure is None:
            self.failure = reason
        self.resume_writing()
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None and not changed.done():
            changed.set_result(None)
