"""The body of a proxied request: kept whole while small, streamed with back-pressure when large."""

import asyncio
from collections.abc import AsyncIterator

from miles_core.errors import MilesError
from miles_router.answers import Receive


class ClientGoneError(MilesError):
    """The caller closed its connection; there is nobody to answer."""


class BodyTooLargeError(MilesError):
    """A body that passed the limit while it was read."""


class RequestBody:
    """Reads the body of one ASGI request.

    After `fill`, `data` is what has been read: the whole body when `complete`, else its first `keep_bytes` or more.
    """

    def __init__(self, receive: Receive, *, keep_bytes: int, limit_bytes: int) -> None:
        self._receive = receive
        self._keep = keep_bytes
        self._limit = limit_bytes
        self._read = 0
        self.data = b""
        self.complete = False
        self.end = asyncio.Event()
        """Set when the body is complete."""
        self.streamed = False
        """True once more than `data` was handed on, so that the body cannot be sent a second time."""
        self.error: BodyTooLargeError | ClientGoneError | None = None
        """Why the body could not be read to its end; the HTTP client reports that as a failure of its own."""

    async def fill(self) -> None:
        """Read until the end, or until `keep_bytes` are there."""
        parts = []
        while not self.complete and self._read <= self._keep:
            parts.append(await self._next())
        self.data = parts[0] if len(parts) == 1 else b"".join(parts)

    async def stream(self) -> AsyncIterator[bytes]:
        """`data`, then the rest as it arrives."""
        yield self.data
        while not self.complete:
            self.streamed = True
            yield await self._next()

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.error = ClientGoneError("the caller left before its request was read.")
            raise self.error
        part: bytes = message.get("body", b"")
        self._read += len(part)
        if self._read > self._limit:
            self.error = BodyTooLargeError(f"expected a body of at most {self._limit} bytes, found more.")
            raise self.error
        if not message.get("more_body", False):
            self.complete = True
            self.end.set()
        return part
