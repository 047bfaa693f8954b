"""Answers that the router and the session server write themselves, in OpenAI's error shape."""

import hmac
import json
from collections.abc import Mapping
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


async def send_error(send: Send, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
    """A whole ASGI answer with an error body."""
    body = json.dumps(error_body(message, kind=error_type(status), code=HTTPStatus(status).name.lower())).encode()
    fields = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    fields += [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


def authorized(scope: Scope, token: str | None) -> bool:
    """True when no token is asked for, or when the request carries it."""
    if token is None:
        return True
    wanted = b"Bearer " + token.encode()
    return any(name == b"authorization" and hmac.compare_digest(value, wanted) for name, value in scope["headers"])


class Gate:
    """The front of an app: bearer token and declared body size, checked before anything is read."""

    def __init__(self, *, token: str | None, body_limit_bytes: int) -> None:
        self._token = token
        self._limit = body_limit_bytes

    async def refused(self, scope: Scope, send: Send) -> bool:
        """Answer 401, 413 or 400 and return True, or return False for a request that may enter."""
        if not authorized(scope, self._token):
            await send_error(
                send,
                401,
                "expected 'Authorization: Bearer TOKEN' with this server's token.",
                {"WWW-Authenticate": "Bearer"},
            )
            return True
        for name, value in scope["headers"]:
            if name == b"content-length" and (not value.isdigit() or int(value) > self._limit):
                await send_error(
                    send, 413, f"expected a body of at most {self._limit} bytes, found {value.decode('latin-1')}."
                )
                return True
        return False
