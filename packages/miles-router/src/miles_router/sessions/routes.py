"""The session server's HTTP calls."""

import asyncio
from typing import Any

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import ValidationError

from miles_core import sample_codec
from miles_core.errors import EngineError, MilesError, SessionError
from miles_router.answers import error_body, error_type
from miles_router.body import BodyTooLargeError
from miles_router.sessions.delivery import answer_chat
from miles_router.sessions.engine import EngineAnswerError
from miles_router.sessions.openai_chat import parse_request
from miles_router.sessions.request import check_tools
from miles_router.sessions.service import SessionService
from miles_router.sessions.session import SessionSpec


def session_routes(service: SessionService) -> APIRouter:
    """Routes over one service."""
    routes = APIRouter()

    @routes.post("/sessions")
    async def create(request: Request) -> Response:
        spec = parse_spec(await read_body(request, service.config.body_limit_bytes))
        return _json({"session_id": service.create(spec).session_id})

    @routes.post("/sessions/{session_id}/v1/chat/completions")
    async def chat(session_id: str, request: Request) -> Response:
        body = parse_request(await read_body(request, service.config.body_limit_bytes))
        attempt = await service.start(
            session_id, body.turn, key=request.headers.get("Idempotency-Key"), retry=_is_retry(request)
        )
        return await answer_chat(service, session_id, body, attempt, request)

    @routes.get("/sessions/{session_id}/v1/models")
    async def models(session_id: str) -> Response:
        service.store.get(session_id)
        entry = {"id": service.config.model_name, "object": "model", "created": 0, "owned_by": "miles"}
        return _json({"object": "list", "data": [entry]})

    @routes.get("/sessions/{session_id}")
    async def describe(session_id: str) -> Response:
        return _json(await service.describe(session_id))

    @routes.post("/sessions/{session_id}/samples")
    async def samples(session_id: str, request: Request) -> Response:
        names = _object(await read_body(request, service.config.body_limit_bytes))
        found = await service.samples(
            session_id, prompt_id=_text(names, "prompt_id"), rollout_id=_text(names, "rollout_id")
        )
        data = await asyncio.to_thread(sample_codec.encode, found)
        return Response(data, media_type="application/octet-stream")

    @routes.delete("/sessions/{session_id}")
    async def delete(session_id: str) -> Response:
        await service.delete(session_id)
        return Response(status_code=204)

    @routes.get("/health")
    async def health() -> Response:
        return _json({"status": "ok", "sessions": len(service.store)})

    return routes


def parse_spec(body: bytes) -> SessionSpec:
    """The session that a body asks for, an empty one for the default; SessionError 400 names the field."""
    fields = _object(body) if body.strip() else {}
    if fields.get("tools") is not None:
        fields = {**fields, "tools": check_tools(fields["tools"])}
    try:
        return SessionSpec.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise SessionError(f"{where}: {first['msg']}, found {first['input']!r}.", status=400) from error


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body; BodyTooLargeError past the limit."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise BodyTooLargeError(f"expected a body of at most {limit} bytes, found more.")
        parts.append(part)
    return b"".join(parts)


def failure(error: MilesError) -> Response:
    """The answer to a call that failed: the engine's own where it gave one, else OpenAI's error shape."""
    if isinstance(error, EngineAnswerError):
        headers = {"Retry-After": error.retry_after} if error.retry_after else None
        return Response(error.body, status_code=error.status or 502, media_type=error.content_type, headers=headers)
    status = 413 if isinstance(error, BodyTooLargeError) else None
    if isinstance(error, EngineError | SessionError):
        status = error.status
    status = status or 500
    return _json(error_body(str(error), kind=error_type(status), code=str(status)), status)


def _is_retry(request: Request) -> bool:
    # The official client numbers the times it sends one request.
    return request.headers.get("x-stainless-retry-count", "0") not in ("", "0")


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise SessionError(f"expected a JSON object, found a body that does not parse: {error}.", status=400) from None
    if not isinstance(value, dict):
        raise SessionError(f"expected a JSON object, found {type(value).__name__}.", status=400)
    return value


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise SessionError(f"{name}: expected a string, found {value!r}.", status=400)
    return value


def _json(value: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status_code=status, media_type="application/json")
