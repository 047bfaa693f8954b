"""The data path as an ASGI app: what middleware stands around, and what any ASGI server can run."""

import asyncio
from collections.abc import Sequence

from miles_router.answers import Receive, Scope, Send
from miles_router.exchange import Exchange
from miles_router.headers import Field
from miles_router.proxy import Proxy

PAUSE_BYTES = 1 << 17
"""Bytes of an answer that may wait to be sent; beyond them the worker is held back."""


class AsgiProxy:
    """Forwards one ASGI request a call."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request; returns when its answer is sent, or when its caller left."""
        caller = _AsgiCaller()
        target: bytes = scope["raw_path"] or scope["path"].encode()
        if scope["query_string"]:
            target += b"?" + scope["query_string"]
        headers = [(bytes(name), bytes(value)) for name, value in scope["headers"]]
        exchange = caller.exchange = self._proxy.exchange(caller, scope["method"].encode(), target, headers)
        reading = asyncio.create_task(self._read(exchange, caller, receive, _declared(headers)))
        try:
            await caller.send_all(send)
        finally:
            exchange.caller_gone()
            reading.cancel()
            await asyncio.wait({reading})

    async def _read(self, exchange: Exchange, caller: "_AsgiCaller", receive: Receive, length: int | None) -> None:
        """Hand the body to the exchange, then wait for the caller to leave."""
        config = self._proxy.config
        kept: list[bytes] = []
        size, started, last = 0, False, False
        while True:
            if not last:
                await caller.may_read.wait()
            message = await receive()
            if message["type"] == "http.disconnect":
                caller.leave()
                return
            if last:
                continue
            data: bytes = message.get("body", b"")
            last = not message.get("more_body", False)
            size += len(data)
            if size > config.body_limit_bytes:
                last = True
                exchange.refuse(413, f"expected a body of at most {config.body_limit_bytes} bytes, found more.")
            elif started:
                exchange.more_body(data, last=last)
            else:
                kept.append(data)
                if last or size > config.replay_bytes:
                    started = True
                    exchange.start(b"".join(kept), length=length, complete=last)


class _AsgiCaller:
    """Puts the answer's pieces in line for `send`, which may wait, and an exchange must not."""

    def __init__(self) -> None:
        self.exchange: Exchange | None = None
        self.may_read = asyncio.Event()
        self.may_read.set()
        self._messages: list[dict[str, object]] = []
        self._waiting_bytes = 0
        self._changed = asyncio.Event()
        self._over = False

    def begin(self, status: int, headers: Sequence[Field], length: int | None) -> None:
        """See `Caller`."""
        fields = [*headers, (b"content-length", b"%d" % length)] if length is not None else [*headers]
        if status in (204, 304):
            fields = [*headers]
        self._put({"type": "http.response.start", "status": status, "headers": fields})

    def write(self, data: bytes, *, last: bool) -> None:
        """See `Caller`."""
        self._over = last
        self._waiting_bytes += len(data)
        if self._waiting_bytes > PAUSE_BYTES and self.exchange is not None and not last:
            self.exchange.caller_is_slow()
        self._put({"type": "http.response.body", "body": data, "more_body": not last})

    def broken(self) -> None:
        """See `Caller`. A server that gets no last message cuts the connection."""
        self.leave()

    def leave(self) -> None:
        """Nothing more is to be sent."""
        self._over = True
        self._changed.set()

    def hold(self) -> None:
        """See `Caller`."""
        self.may_read.clear()

    def carry_on(self) -> None:
        """See `Caller`."""
        self.may_read.set()

    async def send_all(self, send: Send) -> None:
        """Send the messages until the last one."""
        while self._messages or not self._over:
            if not self._messages:
                self._changed.clear()
                await self._changed.wait()
            messages, self._messages = self._messages, []
            for message in messages:
                await send(message)
            self._waiting_bytes = 0
            if self.exchange is not None:
                self.exchange.caller_reads_on()

    def _put(self, message: dict[str, object]) -> None:
        self._messages.append(message)
        self._changed.set()


def _declared(headers: Sequence[Field]) -> int | None:
    return next((int(value) for name, value in headers if name == b"content-length" and value.isdigit()), None)
