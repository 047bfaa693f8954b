"""The port in front of several session processes: every call goes to the process that has its session."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import orjson
from fastapi import FastAPI

from miles_core.errors import ConfigError, SessionError
from miles_router.answers import Receive, Scope, Send
from miles_router.front_connection import FrontConnection
from miles_router.headers import HOP_BY_HOP, REQUEST_DROPS, passed_on
from miles_router.sessions.assembly import Assembler
from miles_router.sessions.cluster.processes import Cluster
from miles_router.sessions.config import SessionServerConfig
from miles_router.sessions.front import Front, callers_side, refuse
from miles_router.sessions.log.shards import num_shards
from miles_router.sessions.matchers import matcher_named
from miles_tito import ChatTokenizer

SHARDS = 64
"""Shards of a new log: enough that a few processes get even shares."""
TAKE_OVER_S = 60.0
"""Longest that a call waits for its session to be taken over."""
MOVED = 421
"""A process's answer to a call for a session in a shard that it does not own."""


class ClusterApp(FastAPI):
    """Session server processes behind one app. They share `config.log`, without which there is nothing to take over.

    A call whose process dies before it answered is sent again to the one that takes over: what was recorded is answered
    from the log there, what was not is sampled anew.
    """

    def __init__(self, config: SessionServerConfig, *, processes: int, log_level: str = "warning") -> None:
        super().__init__(title="miles-sessions", lifespan=_lifespan, docs_url=None, redoc_url=None, openapi_url=None)
        if config.log is None:
            raise ConfigError("several session processes share their sessions through a log; give it a folder.")
        _check(config)
        shards = num_shards(config.log, default=SHARDS)
        self.config = config.model_copy(
            update={"log": config.log.model_copy(update={"shards": shards}), "shards_on_demand": True}
        )
        self.cluster = Cluster(self.config, processes=processes, num_shards=shards, log_level=log_level)
        self.client: aiohttp.ClientSession | None = None
        self._front = Front(token=config.token, body_limit_bytes=config.body_limit_bytes)
        self.callers = callers_side()

    def http_protocol(self, config: Any, server_state: Any, app_state: dict[str, Any], _loop: Any = None) -> Any:
        """The protocol of one connection, as uvicorn asks for it: the router's own, with its limits and deadlines."""
        self.callers.serve(config, server_state, app_state)
        return FrontConnection(self.callers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI connection."""
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
        elif not await self._front.refused(scope, send):
            if scope["path"] == "/health":
                await self._health(send)
            else:
                await self._call(scope, receive, send)

    async def _health(self, send: Send) -> None:
        processes = self.cluster.view()
        status = 200 if any(process["serving"] for process in processes) else 503
        body = orjson.dumps({"status": "ok" if status == 200 else "starting", "processes": processes})
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _call(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._body(receive)
        if body is None:
            await refuse(
                scope, send, 413, f"expected a body of at most {self.config.body_limit_bytes} bytes, found more."
            )
            return
        answering = asyncio.ensure_future(self._answer(scope, body, send))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
        finally:
            answering.cancel()
            leaving.cancel()
            await asyncio.wait({answering, leaving})

    async def _body(self, receive: Receive) -> bytes | None:
        parts, size, more = [], 0, True
        while more:
            message = await receive()
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self.config.body_limit_bytes:
                return None
            more = message.get("more_body", False)
        return b"".join(parts)

    async def _answer(self, scope: Scope, body: bytes, send: Send) -> None:
        """Send the call until a process begins to answer it."""
        deadline = time.monotonic() + TAKE_OVER_S
        again = False
        while time.monotonic() < deadline:
            try:
                url = await self._target(scope["path"], deadline)
            except SessionError as error:
                await refuse(scope, send, 503, str(error), {"Retry-After": "1"})
                return
            try:
                async with self._request(url, scope, body) as answer:
                    if answer.status != MOVED:
                        await _pass_on(answer, send, deleted_before=again and scope["method"] == "DELETE")
                        return
            except aiohttp.ClientConnectionError:
                self.cluster.suspect(url)
                again = True
            await asyncio.sleep(0.02)
        await refuse(scope, send, 503, "waited too long for the session to be taken over.", {"Retry-After": "1"})

    async def _target(self, path: str, deadline: float) -> str:
        parts = path.split("/")
        if len(parts) > 2 and parts[1] == "sessions" and parts[2]:
            return await self.cluster.owner(parts[2], deadline=deadline)
        return await self.cluster.anyone(deadline=deadline)

    def _request(self, url: str, scope: Scope, body: bytes) -> "aiohttp.client._RequestContextManager":
        assert self.client is not None
        query = scope["query_string"].decode("latin-1")
        fields = passed_on(scope["headers"], REQUEST_DROPS)
        path = scope.get("raw_path", scope["path"].encode()).decode("latin-1")
        return self.client.request(
            scope["method"],
            f"{url}{path}?{query}" if query else f"{url}{path}",
            data=body or None,
            headers=[(name.decode("latin-1"), value.decode("latin-1")) for name, value in fields],
        )


def _check(config: SessionServerConfig) -> None:
    """Raise here what every process would fail with."""
    matcher_named(config.matcher)
    Assembler(config, ChatTokenizer.from_pretrained(config.model_dir, template_kwargs=dict(config.template_kwargs)))


async def _pass_on(answer: aiohttp.ClientResponse, send: Send, *, deleted_before: bool) -> None:
    """Hand an answer on as it comes. A break within it breaks the caller's connection too.

    deleted_before: the call went to a process that died with it; that the session is gone is then what was asked for.
    """
    status = 204 if deleted_before and answer.status == 404 else answer.status
    headers = passed_on(answer.raw_headers, HOP_BY_HOP | {b"date", b"server"})
    if status == 204:
        headers = [(name, value) for name, value in headers if not name.startswith(b"content-")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    try:
        async for piece in answer.content.iter_any():
            if status != 204:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
    except aiohttp.ClientError as error:
        raise ConnectionResetError("the session process ended within its answer.") from error
    await send({"type": "http.response.body", "body": b""})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    assert isinstance(app, ClusterApp)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0)
    async with aiohttp.ClientSession(
        connector=connector,
        timeout=timeout,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
    ) as app.client:
        watch = asyncio.create_task(app.callers.run())
        try:
            await app.cluster.start()
            yield
        finally:
            app.callers.close()
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch
            await app.cluster.close()
