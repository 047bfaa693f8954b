"""Failed calls as answers in the caller's dialect."""

from typing import Any

import orjson
from fastapi.responses import Response

from miles_core.errors import EngineError, MilesError, SessionError
from miles_router.answers import Scope
from miles_router.body import BodyTooLargeError
from miles_router.sessions.dialects.dialect import Failure
from miles_router.sessions.dialects.fields import FieldError
from miles_router.sessions.dialects.table import ANTHROPIC, dialect_of
from miles_router.sessions.engine import EngineAnswerError
from miles_router.sessions.front import REQUEST_ID, failure_body


def failure_answer(error: MilesError, scope: Scope) -> Response:
    """The answer to a call that failed: the engine's own where it speaks OpenAI's shape, else one in the dialect."""
    status = 413 if isinstance(error, BodyTooLargeError) else None
    if isinstance(error, EngineError | SessionError):
        status = error.status
    headers, message = {}, str(error)
    if isinstance(error, EngineAnswerError):
        if error.retry_after:
            headers["Retry-After"] = error.retry_after
        told, openai_shape = _told(error.body)
        if openai_shape and dialect_of(scope) is not ANTHROPIC:
            return Response(error.body, status_code=status or 502, media_type="application/json", headers=headers)
        message = told or message
    failure = Failure(
        status=status or 500,
        message=message,
        param=error.param if isinstance(error, FieldError) else None,
        code=error.code if isinstance(error, FieldError) else None,
        request_id=scope.get(REQUEST_ID),
    )
    body = failure_body(scope, failure)
    return Response(body, status_code=failure.status, media_type="application/json", headers=headers)


def _told(body: bytes) -> tuple[str | None, bool]:
    """The message of an engine's error, None without one; and whether the body has OpenAI's shape."""
    try:
        found: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None, False
    error = found.get("error") if isinstance(found, dict) else None
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return error["message"], True
    message = found.get("message") if isinstance(found, dict) else None
    return (message, False) if isinstance(message, str) else (None, False)
