"""HTTP/1.1 to the workers: kept-alive connections, llhttp for parsing, flow control both ways.

The data path needs little of HTTP and needs it fast; `bench/router.py` measures it.
"""

import asyncio
import ssl
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import urlsplit

from miles_core.errors import MilesError
from miles_router.body import RequestBody
from miles_router.connection import Connection

Field = tuple[bytes, bytes]


class UpstreamError(MilesError):
    """A worker that gave no proper answer."""


class ConnectError(UpstreamError):
    """No connection came about; nothing was sent."""


class NoAnswerError(UpstreamError):
    """The connection closed before a byte of an answer came."""


class SilentError(UpstreamError):
    """Nothing came within the deadline."""


class BrokenAnswerError(UpstreamError):
    """What came is not HTTP, or ended before its end."""


class Origin(NamedTuple):
    """Where a base URL leads."""

    host: str
    port: int
    tls: bool
    prefix: bytes
    authority: bytes

    @classmethod
    def of(cls, url: str) -> "Origin":
        """From a checked base URL."""
        parts = urlsplit(url)
        tls = parts.scheme == "https"
        host = parts.hostname or ""
        authority = parts.netloc.rpartition("@")[2].encode()
        return cls(host, parts.port or (443 if tls else 80), tls, parts.path.encode(), authority)


class Answer:
    """The head of an answer, and its body as it comes. It must be closed, in every case."""

    def __init__(
        self, upstream: "Upstream", origin: Origin, connection: Connection, sending: asyncio.Task[None] | None
    ) -> None:
        self._upstream = upstream
        self._origin = origin
        self._connection = connection
        self._sending = sending
        self.status = connection.status
        self.headers: list[Field] = connection.headers
        self.length = connection.declared_length

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body; a reader that does not come for the next piece holds the worker back."""
        connection = self._connection
        while True:
            piece = connection.take()
            if piece:
                yield piece
            elif connection.complete:
                return
            else:
                await self._upstream.more(connection)

    async def read(self) -> bytes:
        """The whole body."""
        return b"".join([piece async for piece in self.pieces()])

    async def close(self) -> None:
        """Keep the connection when the exchange is over on both sides, else cut it."""
        sending = self._sending
        if sending is not None and not sending.done():
            sending.cancel()
            with suppress(asyncio.CancelledError):
                await sending
            self._connection.cut()
        self._upstream.put_back(self._origin, self._connection)


class Upstream:
    """Connections to any number of workers. connect_s, silence_s: longest waits for a connection and for bytes."""

    def __init__(self, *, connect_s: float, silence_s: float, keep_idle_s: float = 4.0) -> None:
        self._connect_s = connect_s
        self._silence_s = silence_s
        self._keep_idle_s = keep_idle_s
        self._idle: defaultdict[Origin, list[tuple[float, Connection]]] = defaultdict(list)
        self._tls: ssl.SSLContext | None = None

    async def request(
        self, method: str, origin: Origin, target: bytes, *, headers: Sequence[Field], body: RequestBody
    ) -> Answer:
        """Send a request and wait for the head of its answer; an UpstreamError says how far it got.

        headers: without host and length, which are written here. body: whole, or streamed while the answer is awaited.
        """
        connection = await self._connection(origin)
        sending: asyncio.Task[None] | None = None
        try:
            whole = body.complete and not body.streamed
            head = _head(method, origin, target, headers, length=len(body.data) if whole else None)
            connection.begin(head + body.data if whole else head, head_only=method == "HEAD")
            if not whole:
                sending = asyncio.create_task(_send_chunks(connection, body))
            await self._answer_begins(connection, sending)
        except BaseException:
            connection.cut()
            if sending is not None:
                sending.cancel()
                await asyncio.wait({sending})
            raise
        return Answer(self, origin, connection, sending)

    async def more(self, connection: Connection) -> None:
        """Wait until the connection has more of the body, or its end; BrokenAnswerError or SilentError."""
        try:
            async with asyncio.timeout(self._silence_s):
                await connection.wait()
        except TimeoutError:
            raise SilentError(f"nothing came for {self._silence_s:g} s") from None
        if connection.failure is not None and not connection.complete:
            raise BrokenAnswerError(connection.failure)

    def put_back(self, origin: Origin, connection: Connection) -> None:
        """Keep a connection for the next call, if it can take one."""
        if connection.reusable:
            self._idle[origin].append((time.monotonic(), connection))
        else:
            connection.cut()

    def close(self) -> None:
        """Cut all idle connections."""
        for kept in self._idle.values():
            for _, connection in kept:
                connection.cut()
        self._idle.clear()

    async def _connection(self, origin: Origin) -> Connection:
        kept = self._idle.get(origin)
        oldest = time.monotonic() - self._keep_idle_s
        while kept:
            since, connection = kept.pop()
            if connection.reusable and since > oldest:
                return connection
            connection.cut()
        if origin.tls and self._tls is None:
            self._tls = ssl.create_default_context()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_s):
                _, connection = await loop.create_connection(
                    Connection, origin.host, origin.port, ssl=self._tls if origin.tls else None
                )
        except TimeoutError:
            raise ConnectError(f"no connection within {self._connect_s:g} s") from None
        except OSError as error:
            raise ConnectError(error.strerror or str(error)) from error
        return connection

    async def _answer_begins(self, connection: Connection, sending: asyncio.Task[None] | None) -> None:
        """Wait for the head. The deadline runs from the end of the request's body, which has its own pace."""
        if sending is not None and not connection.has_head:
            head = asyncio.ensure_future(connection.wait())
            await asyncio.wait({sending, head}, return_when=asyncio.FIRST_COMPLETED)
            head.cancel()
            if sending.done() and sending.exception() is not None and not connection.has_head:
                raise NoAnswerError("the request's body could not be sent to its end") from sending.exception()
        try:
            async with asyncio.timeout(self._silence_s):
                while not connection.has_head and connection.failure is None:
                    await connection.wait()
        except TimeoutError:
            raise SilentError(f"nothing came for {self._silence_s:g} s") from None
        if not connection.has_head:
            if connection.received:
                raise BrokenAnswerError(connection.failure or "no head")
            raise NoAnswerError(connection.failure or "no answer")


def _head(method: str, origin: Origin, target: bytes, headers: Sequence[Field], *, length: int | None) -> bytes:
    lines = [b"%s %s%s HTTP/1.1" % (method.encode(), origin.prefix, target), b"host: " + origin.authority]
    lines += [name + b": " + value for name, value in headers]
    if length is None:
        lines.append(b"transfer-encoding: chunked")
    elif length or method in ("POST", "PUT", "PATCH"):
        lines.append(b"content-length: %d" % length)
    return b"\r\n".join([*lines, b"", b""])


async def _send_chunks(connection: Connection, body: RequestBody) -> None:
    async for piece in body.stream():
        if piece:
            await connection.write(b"%x\r\n%s\r\n" % (len(piece), piece))
    await connection.write(b"0\r\n\r\n")
