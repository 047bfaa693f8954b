"""HTTP/1.1 to the workers: connections that are kept, deadlines on silence, and the head of a request."""

import asyncio
import ssl
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from miles_core.errors import MilesError
from miles_router.connection import Connection
from miles_router.headers import Field


class ConnectError(MilesError):
    """No connection came about; nothing was sent."""


class Origin(NamedTuple):
    """Where a base URL leads."""

    host: str
    port: int
    tls: bool
    prefix: bytes
    host_line: bytes

    @classmethod
    def of(cls, url: str) -> "Origin":
        """From a checked base URL."""
        parts = urlsplit(url)
        tls = parts.scheme == "https"
        authority = parts.netloc.rpartition("@")[2].encode()
        port = parts.port or (443 if tls else 80)
        return cls(parts.hostname or "", port, tls, parts.path.encode(), b" HTTP/1.1\r\nhost: " + authority)


class Upstream:
    """Connections to any number of workers. connect_s: longest wait for one; keep_idle_s: longest it is kept unused."""

    def __init__(self, *, connect_s: float, keep_idle_s: float = 4.0) -> None:
        self._connect_s = connect_s
        self._keep_idle_s = keep_idle_s
        self._idle: defaultdict[Origin, list[Connection]] = defaultdict(list)
        self._tls: ssl.SSLContext | None = None

    def idle(self, origin: Origin) -> Connection | None:
        """A kept connection, taken out; None when there is none that can be used."""
        kept = self._idle.get(origin)
        if not kept:
            return None
        oldest = asyncio.get_running_loop().time() - self._keep_idle_s
        while kept:
            connection = kept.pop()
            if connection.failure is None and connection.touched > oldest:
                return connection
            connection.cut()
        return None

    def keep(self, origin: Origin, connection: Connection) -> None:
        """Keep a connection for the next call, if it can take one."""
        connection.reader = None
        if connection.reusable:
            connection.resume()
            self._idle[origin].append(connection)
        else:
            connection.cut()

    async def connect(self, origin: Origin) -> Connection:
        """A new connection; ConnectError when there is none in time."""
        if origin.tls and self._tls is None:
            self._tls = ssl.create_default_context()
        loop = asyncio.get_running_loop()
        connection = Connection()
        try:
            async with asyncio.timeout(self._connect_s):
                await loop.create_connection(
                    lambda: connection, origin.host, origin.port, ssl=self._tls if origin.tls else None
                )
        except TimeoutError:
            connection.cut()
            raise ConnectError(f"no connection within {self._connect_s:g} s") from None
        except OSError as error:
            raise ConnectError(error.strerror or str(error)) from error
        except BaseException:
            # The connection may have come about in the moment in which nobody wants it any more.
            connection.cut()
            raise
        return connection

    def forget(self, origin: Origin) -> None:
        """Close what is kept of a worker that closes connections itself."""
        for connection in self._idle.pop(origin, []):
            connection.cut()

    def sweep(self) -> None:
        """Close what was kept for too long."""
        oldest = asyncio.get_running_loop().time() - self._keep_idle_s
        for origin, kept in list(self._idle.items()):
            stale = [c for c in kept if c.failure is not None or c.touched <= oldest]
            for connection in stale:
                connection.cut()
            self._idle[origin] = [c for c in kept if c.failure is None]
            if not self._idle[origin]:
                del self._idle[origin]

    def close(self) -> None:
        """Close all kept connections."""
        for kept in self._idle.values():
            for connection in kept:
                connection.cut()
        self._idle.clear()


def request_head(
    method: bytes, origin: Origin, target: bytes, headers: Sequence[Field], *, length: int | None
) -> bytes:
    """The head of a request. headers: without host and length. length: None for a body in chunks."""
    lines = [method + b" " + origin.prefix + target + origin.host_line]
    lines += [name + b": " + value for name, value in headers]
    if length is None:
        lines.append(b"transfer-encoding: chunked")
    elif length or method in (b"POST", b"PUT", b"PATCH"):
        lines.append(b"content-length: %d" % length)
    lines.append(b"\r\n")
    return b"\r\n".join(lines)
