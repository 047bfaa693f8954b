"""The router's app: FastAPI for the few control calls, plain ASGI for everything that is proxied."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import aiohttp
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from miles_core.errors import ConfigError, MilesError
from miles_router.answers import Gate, Receive, Scope, Send, error_body, error_type, send_error
from miles_router.asgi_proxy import AsgiProxy
from miles_router.body import BodyTooLargeError
from miles_router.config import RouterConfig
from miles_router.control_call import call_fields, text_field, version_field
from miles_router.front import Front
from miles_router.front_connection import FrontConnection
from miles_router.health import HealthChecker
from miles_router.metrics import RouterMetrics
from miles_router.pool import Pool
from miles_router.proxy import Proxy
from miles_router.upstream import Upstream
from miles_router.urls import worker_url

CONTROL_PATHS = frozenset(
    {"/add_worker", "/remove_worker", "/list_workers", "/weight_version", "/quarantine", "/health", "/metrics"}
)
"""Answered by the router itself; every other path is proxied."""
_CONTROL_PATHS = frozenset(path.encode() for path in CONTROL_PATHS)


class RouterApp(FastAPI):
    """A FastAPI app that hands every path but its own to the proxy, before any routing.

    Under `serve.run`, proxied calls do not even reach it: `http_protocol` gives them to the proxy from the connection.
    sessions: an app that answers `/sessions...` in the same process, or None.
    """

    def __init__(self, config: RouterConfig, *, sessions: FastAPI | None = None) -> None:
        super().__init__(title="miles-router", lifespan=_lifespan, docs_url=None, redoc_url=None, openapi_url=None)
        self.config = config
        self.sessions = sessions
        self.pool = Pool(
            policy=config.policy.build(),
            failures=config.health.failures,
            max_active=config.max_active_per_worker,
            max_queue=config.max_queue,
            head_start_s=config.priority_head_start_s,
            probe_interval_s=config.health.interval_s,
            max_backoff_s=config.health.max_backoff_s,
        )
        self.metrics = RouterMetrics(self.pool)
        self.checker: HealthChecker | None = None
        self._gate = Gate(token=config.token, body_limit_bytes=config.body_limit_bytes)
        self.front = Front(config, self._gate, is_direct=self._is_direct)
        self._proxied: Any = self._forward
        for middleware in reversed(config.middleware):
            self._proxied = middleware.build(self._proxied)
        for url in config.workers:
            self.pool.add(url)

    def http_protocol(self, config: Any, server_state: Any, app_state: dict[str, Any], _loop: Any = None) -> Any:
        """The protocol of one connection, as uvicorn asks for it."""
        self.front.serve(config, server_state, app_state)
        return FrontConnection(self.front)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI connection."""
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        path = scope["path"]
        if self.sessions is not None and (path == "/sessions" or path.startswith("/sessions/")):
            await self.sessions(scope, receive, send)
        elif await self._gate.refused(scope, send):
            return
        elif path in CONTROL_PATHS:
            await super().__call__(scope, receive, send)
        else:
            await self._proxied(scope, receive, send)

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.front.proxy is None:
            await send_error(send, 503, "the router is not running.", {"Retry-After": "1"})
        else:
            await AsgiProxy(self.front.proxy)(scope, receive, send)

    def _is_direct(self, path: bytes) -> bool:
        if self.config.middleware or path in _CONTROL_PATHS:
            return False
        return self.sessions is None or not (path == b"/sessions" or path.startswith(b"/sessions/"))


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    assert isinstance(app, RouterApp)
    config, front = app.config, app.front
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()))
        upstream = Upstream(connect_s=config.connect_timeout_s)
        stack.callback(upstream.close)
        headers = {"authorization": f"Bearer {config.worker_token}"} if config.worker_token else None
        app.checker = HealthChecker(app.pool, session, timeout_s=config.health.timeout_s, headers=headers)
        front.proxy = Proxy(app.pool, config, app.metrics, upstream)
        stack.callback(front.close)
        stack.callback(front.proxy.close)
        for watch in (app.checker.run(), front.proxy.run(), front.run()):
            stack.push_async_callback(_cancel, asyncio.create_task(watch))
        if app.sessions is not None:
            await stack.enter_async_context(app.sessions.router.lifespan_context(app.sessions))
        try:
            yield
        finally:
            front.proxy = None


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def create_router_app(config: RouterConfig, *, sessions: FastAPI | None = None) -> RouterApp:
    """The router as an app for `serve.run` or any ASGI server.

    sessions: the app of `create_session_app`, answered under `/sessions` by the same process.
    """
    app = RouterApp(config, sessions=sessions)
    _add_error_handlers(app)
    _add_worker_routes(app)
    _add_report_routes(app)
    return app


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(HTTPException)
    async def unserved(request: Request, error: HTTPException) -> JSONResponse:
        return _error(error.status_code, f"{request.method} {request.url.path}: {error.detail}.", error.headers)

    @app.exception_handler(BodyTooLargeError)
    async def too_large(_: Request, error: BodyTooLargeError) -> JSONResponse:
        return _error(413, str(error), {"Connection": "close"})

    @app.exception_handler(MilesError)
    async def refused(_: Request, error: MilesError) -> JSONResponse:
        return _error(400 if isinstance(error, ConfigError) else 500, str(error))


def _add_worker_routes(app: RouterApp) -> None:
    pool = app.pool

    @app.post("/add_worker")
    async def add_worker(request: Request) -> Any:
        worker = pool.add(worker_url(text_field(await call_fields(request, "url"), "url")))
        await _probe(app)
        return worker.view()

    @app.post("/remove_worker")
    async def remove_worker(request: Request) -> Any:
        url = worker_url(text_field(await call_fields(request, "url"), "url"))
        worker = pool.remove(url)
        return _unknown(url) if worker is None else worker.view()

    @app.post("/quarantine")
    async def quarantine(request: Request) -> Any:
        fields = await call_fields(request, "url")
        url = worker_url(text_field(fields, "url"))
        if not pool.quarantine(url, text_field(fields, "reason", default="asked for")):
            return _unknown(url)
        return {"workers": [worker.view() for worker in pool.workers if worker.url == url]}

    @app.get("/list_workers")
    async def list_workers() -> Any:
        return {"workers": [worker.view() for worker in pool.workers]}

    @app.post("/weight_version")
    async def set_version(request: Request) -> Any:
        pool.set_version(version_field(await call_fields(request, "version"), "version"))
        await _probe(app)
        return {"version": pool.version, "workers": [worker.view() for worker in pool.workers]}


def _add_report_routes(app: RouterApp) -> None:
    @app.get("/health")
    async def health() -> Any:
        return {"status": "ok", "workers": len(app.pool.workers), "weight_version": app.pool.version}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(app.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def _probe(app: RouterApp) -> None:
    # The answer to the call that changed something already tells which workers are admitted.
    if app.checker is not None:
        await app.checker.probe_due()


def _unknown(url: str) -> JSONResponse:
    return _error(404, f"worker {url} is not registered here; /list_workers shows those that are.")


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse(error_body(message, kind=error_type(status)), status_code=status, headers=headers)
