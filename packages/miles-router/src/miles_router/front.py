"""The callers' side of a router: what all their connections share."""

import asyncio
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

from miles_router.answers import Gate
from miles_router.config import RouterConfig
from miles_router.proxy import Proxy

if TYPE_CHECKING:
    from miles_router.front_connection import FrontConnection


class Front:
    """Deadlines, limits and the choice between the short way and the app.

    is_direct: whether a path is proxied without the app. max_connections: further ones are answered 503.
    """

    def __init__(self, config: RouterConfig, gate: Gate, *, is_direct: Callable[[bytes], bool]) -> None:
        self.config = config
        self.gate = gate
        self.is_direct = is_direct
        self.proxy: Proxy | None = None
        self.app: Any = None
        self.app_state: dict[str, Any] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.connections: set[Any] = set()
        """As the server knows them: it asks each to end when it stops."""
        self.max_connections: int | None = None
        self.date_line = b""
        self.tell_date()

    def tell_date(self) -> None:
        """Write the `date` field anew; it holds whole seconds."""
        self.date_line = b"date: " + formatdate(time.time(), usegmt=True).encode()

    def serve(self, config: Any, server_state: Any, app_state: dict[str, Any]) -> None:
        """Take from a server what it has: the loaded app, its limit, the sets it watches."""
        self.app, self.app_state, self.max_connections = config.loaded_app, app_state, config.limit_concurrency
        self.connections, self.tasks = server_state.connections, server_state.tasks

    def opened(self, connection: "FrontConnection") -> bool:
        """A connection came; False when there are too many already."""
        self.connections.add(connection)
        return self.max_connections is None or len(self.connections) <= self.max_connections

    def closed(self, connection: "FrontConnection") -> None:
        """A connection is gone."""
        self.connections.discard(connection)

    async def run(self) -> None:
        """Hold the connections to their deadlines; cancel to end."""
        loop = asyncio.get_running_loop()
        shortest = min(self.config.head_timeout_s, self.config.body_timeout_s, self.config.keep_alive_s)
        pause_s = min(0.5, shortest / 8)
        while True:
            await asyncio.sleep(pause_s)
            self.tell_date()
            now = loop.time()
            for connection in [*self.connections]:
                if connection.deadline < now:
                    connection.expire()

    def close(self) -> None:
        """Cut every connection."""
        for connection in [*self.connections]:
            connection.cut()
