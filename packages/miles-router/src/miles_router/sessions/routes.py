"""The session server's HTTP calls."""

import asyncio
from typing import Any

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from miles_core import sample_codec
from miles_core.errors import SessionError
from miles_router.body import BodyTooLargeError
from miles_router.sessions.delivery import CallerLeftError, answer
from miles_router.sessions.dialects.anthropic.request import parse_request as parse_messages
from miles_router.sessions.dialects.dialect import AnswerFacts, Dialect
from miles_router.sessions.dialects.fields import FieldError, brief, read_object
from miles_router.sessions.dialects.openai_responses.answer import find_response, response
from miles_router.sessions.dialects.table import ENDPOINTS, dialect_of
from miles_router.sessions.request import check_tools
from miles_router.sessions.service import SessionService
from miles_router.sessions.session import Session, SessionSpec


def session_routes(service: SessionService) -> APIRouter:
    """Routes over one service."""
    routes = APIRouter()
    _add_session_routes(routes, service)
    for path, dialect in ENDPOINTS.items():
        _add_turn_route(routes, service, path, dialect)
    for prefix in ("/v1", "/anthropic/v1"):
        _add_model_routes(routes, service, prefix)
        _add_count_route(routes, service, prefix)
    _add_response_route(routes, service)
    return routes


def _add_session_routes(routes: APIRouter, service: SessionService) -> None:
    limit = service.config.body_limit_bytes

    @routes.post("/sessions")
    async def create(request: Request) -> Response:
        spec = parse_spec(await read_body(request, limit))
        return _json({"session_id": (await service.create(spec)).session_id})

    @routes.get("/sessions/{session_id}")
    async def describe(session_id: str) -> Response:
        return _json(await service.describe(session_id))

    @routes.post("/sessions/{session_id}/samples")
    async def samples(session_id: str, request: Request) -> Response:
        names = read_object(await read_body(request, limit))
        found = await service.samples(
            session_id, prompt_id=_name(names, "prompt_id"), rollout_id=_name(names, "rollout_id")
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


def _add_turn_route(routes: APIRouter, service: SessionService, path: str, dialect: Dialect) -> None:
    @routes.post("/sessions/{session_id}" + path)
    async def turn(session_id: str, request: Request) -> Response:
        body = await read_body(request, service.config.body_limit_bytes)
        session = service.store.get(session_id)
        asked = dialect.read(body, session)
        key = request.headers.get("Idempotency-Key")
        attempt = await service.start(session_id, asked.turn, key=key, retry=_is_retry(request))
        facts = _facts(service, session)
        return await answer(asked, attempt, facts, request, ping=dialect.ping, ping_s=service.config.ping_s)


def _add_model_routes(routes: APIRouter, service: SessionService, prefix: str) -> None:
    name = service.config.model_name

    @routes.get("/sessions/{session_id}" + prefix + "/models")
    async def models(session_id: str, request: Request) -> Response:
        service.store.get(session_id)
        return _json(dialect_of(request.scope).models(name))

    @routes.get("/sessions/{session_id}" + prefix + "/models/{model:path}")
    async def model(session_id: str, model: str, request: Request) -> Response:
        service.store.get(session_id)
        if model != name:
            raise SessionError(f"model {model!r} is not served here; {name!r} is.", status=404)
        return _json(dialect_of(request.scope).model(name))


def _add_count_route(routes: APIRouter, service: SessionService, prefix: str) -> None:
    @routes.post("/sessions/{session_id}" + prefix + "/messages/count_tokens")
    async def count(session_id: str, request: Request) -> Response:
        body = await read_body(request, service.config.body_limit_bytes)
        asked = parse_messages(body, counting=True)
        return _json({"input_tokens": service.count_tokens(session_id, asked.turn)})


def _add_response_route(routes: APIRouter, service: SessionService) -> None:
    @routes.get("/sessions/{session_id}/v1/responses/{response_id}")
    async def retrieve(session_id: str, response_id: str) -> Response:
        session = service.store.get(session_id)
        turn = find_response(session, response_id)
        if turn is None:
            raise SessionError(f"{response_id!r} is no stored response of this session.", status=404)
        return _json(response(turn, _facts(service, session)))


def parse_spec(body: bytes) -> SessionSpec:
    """The session that a body asks for, an empty one for the default; SessionError 400 names the field."""
    fields = read_object(body) if body.strip() else {}
    if fields.get("tools") is not None:
        fields = {**fields, "tools": check_tools(fields["tools"])}
    try:
        return SessionSpec.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise FieldError(where, f"{first['msg']}, found {brief(first['input'])}.") from error


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body; BodyTooLargeError past the limit, CallerLeftError when it breaks off."""
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > limit:
                raise BodyTooLargeError(f"expected a body of at most {limit} bytes, found more.")
            parts.append(part)
    except ClientDisconnect:
        raise CallerLeftError("the caller left before its request was there.", status=499) from None
    return b"".join(parts)


def _facts(service: SessionService, session: Session) -> AnswerFacts:
    return AnswerFacts(session=session, chat=service.chat, model=service.config.model_name)


def _is_retry(request: Request) -> bool:
    # The official clients number the times they send one request.
    return request.headers.get("x-stainless-retry-count", "0") not in ("", "0")


def _name(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise FieldError(name, f"expected a text that is not empty, found {brief(value)}.")
    return value


def _json(value: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status_code=status, media_type="application/json")
