"""Running an app: in the foreground, or in a thread beside other code."""

import asyncio
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Self

import uvicorn

from miles_core.errors import ConfigError, DeadlineError


def bind(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """A listening socket; port 0 lets the system choose one. ConfigError when the address cannot be listened on.

    reuse_port: share the port with other processes that do so too; the system deals new connections out among them.
    """
    if not host:  # would mean every interface
        raise ConfigError("expected an address to listen on, found an empty one; give 127.0.0.1, or 0.0.0.0 for all.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        if reuse_port and not hasattr(socket, "SO_REUSEPORT"):
            raise ConfigError("this system cannot share a port; start without it.")
        if reuse_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except (OSError, OverflowError, UnicodeError) as error:  # taken or not ours; no port number; no host name
        listener.close()
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"cannot listen on {host}:{port} ({why}); give another port (0 takes a free one) or an address of this "
            "machine."
        ) from error
    return listener


def url_of(listener: socket.socket) -> str:
    """The URL of a bound socket; a wildcard address is shown as loopback."""
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}"


def run(
    app: Any,
    *,
    host: str = "127.0.0.1",
    port: int = 30080,
    listener: socket.socket | None = None,
    log_level: str = "warning",
    max_connections: int | None = None,
    drain_s: float = 10.0,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM, then take no more and let running calls end for `drain_s` seconds.

    The port is free from the signal on, so that a successor can listen there while the last streams still run.

    listener: a socket from `bind`, used instead of host and port. max_connections: further ones are answered 503.
    on_ready: called with the URL once the server answers.
    """
    listener = listener or bind(host, port)
    server = _Server(_uvicorn_config(app, log_level, max_connections, drain_s), url_of(listener), on_ready)
    try:
        server.run(sockets=[listener])
    finally:
        listener.close()


class ServerThread:
    """An app served from a thread of this process; a context manager.

    url: base URL once started. Starting waits for the app's own start, `start_timeout_s` at most.
    """

    def __init__(self, app: Any, host: str = "127.0.0.1", port: int = 0, *, start_timeout_s: float = 30.0) -> None:
        self._listener = bind(host, port)
        self.url = url_of(self._listener)
        self._server = _Server(_uvicorn_config(app, "warning", None, 1.0), self.url, None)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._listener]}, name=f"serve-{self.url}", daemon=True
        )
        self._start_timeout_s = start_timeout_s

    def start(self) -> Self:
        """Start and return when the app answers; DeadlineError when it does not in time."""
        self._thread.start()
        give_up = time.monotonic() + self._start_timeout_s
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > give_up:
                self.stop()
                raise DeadlineError(f"waited {self._start_timeout_s:g} s for the server at {self.url} to start.")
            time.sleep(0.005)
        return self

    def request_stop(self) -> None:
        """Let the server begin to end, without waiting for it."""
        self._server.should_exit = True

    def stop(self, *, timeout_s: float = 10.0) -> None:
        """End the server and its thread; calls that still run after a second are cut."""
        self.request_stop()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._server.force_exit = True
            self._thread.join(timeout_s)
        self._listener.close()
        if self._thread.is_alive():
            raise DeadlineError(f"waited {2 * timeout_s:g} s for the server at {self.url} to stop.")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, url: str, on_ready: Callable[[str], None] | None) -> None:
        super().__init__(config)
        self._listeners: list[socket.socket] = []
        self._accepting: asyncio.Future[None] | None = None
        self._url = url
        self._on_ready = on_ready

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal asks for the end, a second SIGINT for a quick one.

        It is not raised again afterwards: a stop that was asked for is a success.
        """
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._listeners = [*(sockets or ())]
        self._make: Any = self.config.http_protocol_class
        self.config.http_protocol_class = self._make_and_accept  # type: ignore[assignment]
        await super().startup(sockets=sockets)
        if self.started and self._on_ready is not None:
            self._on_ready(self._url)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Connections that the system has made but this server has not yet taken would be reset with the listener.
        await self._accept_waiting()
        await super().shutdown(sockets=sockets)

    def _make_and_accept(self, **arguments: Any) -> asyncio.Protocol:
        """The protocol of a connection that the loop accepted.

        uvloop accepts one connection a turn, and a turn serves every connection that has a request: of a hundred that
        come at once the last would wait a hundred turns, each longer than the one before. So all are taken now.
        """
        if self._accepting is None:
            self._accepting = asyncio.ensure_future(self._accept_waiting())
        protocol: asyncio.Protocol = self._make(**arguments)
        return protocol

    async def _accept_waiting(self) -> None:
        loop = asyncio.get_running_loop()
        state = {"config": self.config, "server_state": self.server_state, "app_state": self.lifespan.state}
        try:
            came = [connection for listener in self._listeners for connection in _accepted(listener)]
            opening = (loop.connect_accepted_socket(lambda: self._make(**state), connection) for connection in came)
            # One that is gone again already is no loss to the others.
            await asyncio.gather(*opening, return_exceptions=True)
        finally:
            self._accepting = None


def _accepted(listener: socket.socket) -> list[socket.socket]:
    """The connections that wait to be accepted."""
    found: list[socket.socket] = []
    with suppress(OSError):  # none waits any more
        while True:
            connection, _ = listener.accept()
            connection.setblocking(False)
            found.append(connection)
    return found


def _uvicorn_config(app: Any, log_level: str, max_connections: int | None, drain_s: float) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=getattr(app, "http_protocol", "auto"),  # an app may bring the protocol of its connections
        log_level=log_level,
        access_log=False,
        server_header=False,
        lifespan="on",
        ws="none",
        backlog=2048,
        limit_concurrency=max_connections,
        timeout_graceful_shutdown=max(1, round(drain_s)),
    )
