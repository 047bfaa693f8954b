"""One request that the app answers: ASGI on top of a caller's connection."""

import asyncio
import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from miles_router.answers import Scope
from miles_router.headers import Field

if TYPE_CHECKING:
    from miles_router.front_connection import FrontConnection
    from miles_router.front_request import FrontRequest

log = logging.getLogger(__name__)

PAUSE_BYTES = 1 << 16
"""Of a body that the app does not read; beyond them its sender is held back."""
WRITTEN_HERE = frozenset((b"content-length", b"transfer-encoding", b"connection", b"date"))


class AsgiCall:
    """Runs the app in a task for one request."""

    def __init__(self, connection: "FrontConnection", request: "FrontRequest", path: bytes) -> None:
        self._connection = connection
        self._front = connection.front
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._body_ended = False
        self._told_end = False
        self._changed = asyncio.Event()
        self._gone = False
        self._begun = False
        self._done = False
        task = asyncio.create_task(self._run(_scope(connection, request, path)))
        self._front.tasks.add(task)
        task.add_done_callback(self._front.tasks.discard)

    # What the connection calls.

    def more_body(self, data: bytes) -> None:
        """A piece of the request's body."""
        self._body.append(data)
        self._body_bytes += len(data)
        if self._body_bytes > PAUSE_BYTES:
            self._connection.hold()
        self._changed.set()

    def body_ends(self) -> None:
        """The body is whole."""
        self._body_ended = True
        self._changed.set()

    def caller_gone(self) -> None:
        """The caller left."""
        self._gone = True
        self._changed.set()

    # What the app calls.

    async def _receive(self) -> dict[str, Any]:
        while not (self._gone or self._done):
            if self._body or (self._body_ended and not self._told_end):
                body, self._body, self._body_bytes = b"".join(self._body), [], 0
                self._told_end = self._body_ended
                self._connection.carry_on()
                return {"type": "http.request", "body": body, "more_body": not self._told_end}
            self._changed.clear()
            await self._changed.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        connection = self._connection
        if not connection.can_write.is_set():
            await connection.can_write.wait()
        if self._gone or self._done:
            return
        if message["type"] == "http.response.start":
            headers: list[Field] = [(bytes(name).lower(), bytes(value)) for name, value in message.get("headers", ())]
            length = next((int(value) for name, value in headers if name == b"content-length"), None)
            connection.begin(message["status"], [h for h in headers if h[0] not in WRITTEN_HERE], length)
            self._begun = True
        elif message["type"] == "http.response.body":
            last = not message.get("more_body", False)
            self._done = last
            connection.write(bytes(message.get("body", b"")), last=last)
            if last:
                self._changed.set()

    async def _run(self, scope: Scope) -> None:
        try:
            await self._front.app(scope, self._receive, self._send)
        except Exception:  # the boundary to code of others: its caller gets an answer, the log gets the rest
            log.exception("the app failed on %s %s", scope["method"], scope["path"])
            if not self._begun:
                fields = [(b"content-type", b"text/plain; charset=utf-8")]
                await self._send({"type": "http.response.start", "status": 500, "headers": fields})
                await self._send({"type": "http.response.body", "body": b"Internal Server Error"})
        finally:
            if not self._done and not self._gone:
                self._done = True
                self._connection.broken()


def _scope(connection: "FrontConnection", request: "FrontRequest", path: bytes) -> Scope:
    transport = connection.transport
    server, client = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": request.http_version,
        "server": tuple(server[:2]) if isinstance(server, tuple) else None,
        "client": tuple(client[:2]) if isinstance(client, tuple) else None,
        "scheme": "http",
        "method": request.method.decode("ascii"),
        "root_path": "",
        "path": unquote(path.decode("ascii", "replace")),
        "raw_path": path,
        "query_string": request.target.partition(b"?")[2],
        "headers": request.headers,
        "state": connection.front.app_state.copy(),
    }
