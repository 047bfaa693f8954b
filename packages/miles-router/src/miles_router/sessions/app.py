"""The session server's app."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from miles_core.errors import MilesError, SessionError
from miles_router.answers import Receive, Scope, Send
from miles_router.front_connection import FrontConnection
from miles_router.sessions.assembly import Assembler
from miles_router.sessions.config import SessionServerConfig
from miles_router.sessions.engine import engine_client
from miles_router.sessions.failures import failure_answer
from miles_router.sessions.front import Front, callers_side, with_request_id
from miles_router.sessions.log.shards import ShardedLog
from miles_router.sessions.matchers import matcher_named
from miles_router.sessions.routes import session_routes
from miles_router.sessions.service import SessionService
from miles_tito import ChatTokenizer


class SessionApp(FastAPI):
    """A FastAPI app with its bearer token and body limit checked before anything else."""

    def __init__(self, config: SessionServerConfig, chat: ChatTokenizer) -> None:
        super().__init__(title="miles-sessions", lifespan=_lifespan, docs_url=None, redoc_url=None, openapi_url=None)
        self.config = config
        self.chat = chat
        self.service: SessionService | None = None
        self.assembler = Assembler(config, chat)
        self.matcher = matcher_named(config.matcher)
        self.log = None if config.log is None else ShardedLog(config.log)
        if self.log is not None and not config.shards_on_demand:
            self.log.claim()
        self._front = Front(token=config.token, body_limit_bytes=config.body_limit_bytes)
        self.callers = callers_side()

    def http_protocol(self, config: Any, server_state: Any, app_state: dict[str, Any], _loop: Any = None) -> Any:
        """The protocol of one connection, as uvicorn asks for it: the router's own, with its limits and deadlines."""
        self.callers.serve(config, server_state, app_state)
        return FrontConnection(self.callers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI connection."""
        if scope["type"] == "http":
            send = with_request_id(scope, send)
            if await self._front.refused(scope, send):
                return
        await super().__call__(scope, receive, send)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    assert isinstance(app, SessionApp)
    config = app.config
    app.service = SessionService(
        config, app.chat, engine_client(config), matcher=app.matcher, assembler=app.assembler, log=app.log
    )
    try:
        await app.service.open()
    except BaseException:
        await app.service.close()
        raise
    app.include_router(session_routes(app.service))
    tasks = [asyncio.create_task(app.service.tend()), asyncio.create_task(app.callers.run())]
    try:
        yield
    finally:
        app.callers.close()
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await app.service.close()


def create_session_app(config: SessionServerConfig, *, chat: ChatTokenizer | None = None) -> SessionApp:
    """The session server as an app for `serve.run` or any ASGI server.

    chat: the tokenizer to use instead of the one in `config.model_dir`.
    """
    if chat is None:
        chat = ChatTokenizer.from_pretrained(config.model_dir, template_kwargs=dict(config.template_kwargs))
    app = SessionApp(config, chat)

    @app.exception_handler(MilesError)
    async def failed(request: Request, error: MilesError) -> Response:
        return failure_answer(error, request.scope)

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        told = SessionError(f"{request.method} {request.url.path}: {error.detail}.", status=error.status_code)
        return failure_answer(told, request.scope)

    @app.exception_handler(Exception)
    async def crashed(request: Request, error: Exception) -> Response:
        told = SessionError(f"the server failed: {type(error).__name__}; its log has the details.", status=500)
        return failure_answer(told, request.scope)

    return app
