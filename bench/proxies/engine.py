"""An engine that costs next to nothing: it answers every request with bytes made beforehand, or streams them.

`python engine.py PORT`. `/generate` answers 32 ids at once; what names a chat or a stream gets EVENTS events, one
every STEP_S seconds.
"""

import asyncio
import json
import sys
from typing import Any

import uvloop

EVENTS = 100
STEP_S = 0.01
ANSWER = json.dumps({"text": "", "output_ids": list(range(32)), "meta_info": {"weight_version": "0"}}).encode()
EVENT = b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": "token"}}]}).encode() + b"\n\n"


def whole(body: bytes) -> bytes:
    """An answer of a known length."""
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


GENERATED = whole(ANSWER)
NOTHING = whole(b"{}")
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)


class Engine(asyncio.Protocol):
    """One connection."""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._data = b""

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = self._data[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._data) < end + 4 + length:
                return
            path = b"".join(head.split(b" ", 2)[1:2])
            self._data = self._data[end + 4 + length :]
            if path == b"/generate":
                self._transport.write(GENERATED)
            elif b"stream" in path or b"chat" in path:
                asyncio.get_running_loop().create_task(self._stream())
            else:
                self._transport.write(NOTHING)

    async def _stream(self) -> None:
        self._transport.write(STREAM_HEAD)
        for _ in range(EVENTS):
            await asyncio.sleep(STEP_S)
            self._transport.write(CHUNK)
        self._transport.write(b"0\r\n\r\n")


async def main(port: int) -> None:
    """Serve for ever."""
    server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", port, backlog=2048)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
