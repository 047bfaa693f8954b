"""Callers that keep a server busy: small requests from so many connections, or so many streams at once."""

import asyncio
import json
import time
from dataclasses import dataclass, field

BODY = json.dumps({"input_ids": list(range(128)), "return_logprob": True}).encode()
CHAT = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}).encode()


def request(path: str, body: bytes) -> bytes:
    """A POST with a JSON body."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@dataclass(slots=True)
class Counted:
    """What the callers saw. Times in seconds."""

    times: list[float] = field(default_factory=list)
    failures: int = 0
    events: int = 0


class Caller(asyncio.Protocol):
    """One connection that sends the next request when the last answer is whole, until the time is up."""

    def __init__(self, request: bytes, counted: Counted, ends_at: float) -> None:
        self._request, self._counted, self._ends_at = request, counted, ends_at
        self.done = asyncio.get_running_loop().create_future()
        self._data = b""
        self._started = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._send()

    def _send(self) -> None:
        self._started = time.perf_counter()
        self._transport.write(self._request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self._data += data
        head = self._data.find(b"\r\n\r\n")
        if head < 0:
            return
        if not self._data.startswith(b"HTTP/1.1 200"):
            self._counted.failures += 1
            self._transport.close()
            return
        fields = self._data[:head].lower()
        at = fields.find(b"content-length:")
        if at >= 0:
            whole = len(self._data) >= head + 4 + int(fields[at + 15 :].split(b"\r\n", 1)[0])
        else:
            whole = self._data.endswith(b"0\r\n\r\n")
        if whole:
            self._answered()

    def _answered(self) -> None:
        now = time.perf_counter()
        self._counted.times.append(now - self._started)
        self._counted.events += self._data.count(b"data: ")
        self._data = b""
        if now < self._ends_at:
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self._counted.failures += bool(self._data) or error is not None
            self.done.set_result(None)


async def drive(port: int, message: bytes, *, connections: int, seconds: float) -> Counted:
    """Call from so many connections for so long; a caller that is not answered 20 s after the end is a failure."""
    loop = asyncio.get_running_loop()
    counted = Counted()
    ends_at = time.perf_counter() + seconds
    callers = []
    for _ in range(connections):
        _, caller = await loop.create_connection(lambda: Caller(message, counted, ends_at), "127.0.0.1", port)
        callers.append(caller)
    _, late = await asyncio.wait([caller.done for caller in callers], timeout=seconds + 20)
    counted.failures += len(late)
    counted.times.sort()
    return counted
