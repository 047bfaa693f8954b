"""One process of several: a session server that owns the shards it is told to. Started by `processes`, not by hand.

It reads its orders as one line of JSON from its standard input, writes its port as one line to its standard output, and
ends when its standard input does: with the process that started it.
"""

import hmac
import logging
import os
import signal
import sys
import threading
from dataclasses import dataclass
from typing import Any

import orjson

from miles_core.errors import SessionError
from miles_router.answers import Receive, Scope, Send, send_error
from miles_router.serve import bind, run, url_of
from miles_router.sessions.app import SessionApp, create_session_app
from miles_router.sessions.config import SessionServerConfig

SECRET_HEADER = b"x-miles-cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What a process is started with. secret: proves that a call about shards comes from the front."""

    config: SessionServerConfig
    secret: str
    log_level: str

    def encode(self) -> bytes:
        """As one line."""
        config = self.config.model_dump(mode="json")
        return orjson.dumps({"config": config, "secret": self.secret, "log_level": self.log_level}) + b"\n"


def read_orders(line: bytes) -> Orders:
    """What `encode` wrote."""
    fields = orjson.loads(line)
    config = SessionServerConfig.model_validate_json(orjson.dumps(fields["config"]))
    return Orders(config=config, secret=fields["secret"], log_level=fields["log_level"])


class WorkerApp:
    """A session server's app, and in front of it `POST /cluster/acquire` and `/cluster/release` `{"shards": [...]}`.

    Both answer `{"done": [...], "refused": {shard: reason}}`.
    """

    def __init__(self, sessions: SessionApp, *, secret: str) -> None:
        self._sessions = sessions
        self._secret = secret.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI connection."""
        if scope["type"] != "http" or not scope["path"].startswith("/cluster/"):
            await self._sessions(scope, receive, send)
        elif not any(n == SECRET_HEADER and hmac.compare_digest(v, self._secret) for n, v in scope["headers"]):
            await send_error(send, 404, f"{scope['path']}: not found.")
        else:
            answer = await self._move(scope["path"].removeprefix("/cluster/"), await _body(receive))
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": answer})

    async def _move(self, what: str, body: bytes) -> bytes:
        service = self._sessions.service
        assert service is not None
        done, refused = [], {}
        for shard in orjson.loads(body)["shards"]:
            try:
                await (service.acquire(shard) if what == "acquire" else service.release(shard))
                done.append(shard)
            except (SessionError, OSError) as error:
                refused[str(shard)] = str(error)
        return orjson.dumps({"done": done, "refused": refused})


async def _body(receive: Receive) -> bytes:
    data, more = b"", True
    while more:
        message = await receive()
        data += message.get("body", b"")
        more = message.get("more_body", False)
    return data


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Serve on a free port of the loopback until the starter ends."""
    orders = read_orders(sys.stdin.buffer.readline())
    logging.basicConfig(level=orders.log_level.upper(), format="%(asctime)s sessions %(levelname)s %(message)s")
    threading.Thread(target=_end_with_parent, daemon=True).start()
    app: Any = WorkerApp(create_session_app(orders.config), secret=orders.secret)
    listener = bind("127.0.0.1", 0)
    run(app, listener=listener, log_level=orders.log_level, on_ready=lambda _: print(url_of(listener), flush=True))


if __name__ == "__main__":
    main()
