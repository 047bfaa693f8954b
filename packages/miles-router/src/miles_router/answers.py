"""Answers that the router and the session server write themselves, in OpenAI's error shape."""

import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

Send = Any
Scope = Any
Receive = Any


def error_body(message: str, *, kind: str, code: str | None = None) -> dict[str, Any]:
    """`{"error": {"message", "type", "code"}}`."""
    return {"error": {"message": message, "type": kind, "code": code}}


def error_type(status: int) -> str:
    """OpenAI's name for a class of failures."""
    names = {
        401: "authentication_error",
        404: "not_found_error",
        409: "conflict_error",
        413: "request_too_large",
        429: "rate_limit_error",
        503: "overloaded_error",
        504: "timeout_error",
    }
    return names.get(status, "invalid_request_error" if status < 500 else "server_error")


def error_answer(
    status: int, message: str, headers: Mapping[str, str] | None = None
) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Header fields, without a length, and body of an answer that says what is wrong."""
    body = json.dumps(error_body(message, kind=error_type(status), code=HTTPStatus(status).name.lower())).encode()
    fields = [(b"content-type", b"application/json")]
    fields += [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
    return fields, body


async def send_error(send: Send, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
    """A whole ASGI answer with an error body."""
    fields, body = error_answer(status, message, headers)
    fields.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


def authorized(scope: Scope, token: str | None) -> bool:
    """True when no token is asked for, or when the request carries it."""
    if token is None:
        return True
    wanted = token.encode()
    return any(
        name == b"authorization" and value[:7].lower() == b"bearer " and hmac.compare_digest(value[7:], wanted)
        for name, value in scope["headers"]
    )


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that says no before the request was read."""

    status: int
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)


class Gate:
    """The front of an app: bearer token and declared body size, checked before anything is read."""

    def __init__(self, *, token: str | None, body_limit_bytes: int) -> None:
        self._token = token
        self._limit = body_limit_bytes

    def refusal(self, scope: Scope) -> Refusal | None:
        """401, 413, or None for a request that may enter. scope: needs `headers` alone."""
        if self._token is not None and not authorized(scope, self._token):
            message = "expected 'Authorization: Bearer TOKEN' with this server's token."
            return Refusal(401, message, {"WWW-Authenticate": "Bearer"})
        for name, value in scope["headers"]:
            if name == b"content-length" and (not value.isdigit() or int(value) > self._limit):
                found = value.decode("latin-1")
                return Refusal(413, f"expected a body of at most {self._limit} bytes, found {found}.")
        return None

    async def refused(self, scope: Scope, send: Send) -> bool:
        """Answer 401 or 413 and return True, or return False for a request that may enter."""
        refusal = self.refusal(scope)
        if refusal is not None:
            await send_error(send, refusal.status, refusal.message, refusal.headers)
        return refusal is not None
