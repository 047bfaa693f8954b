"""What every call passes before it is read: a request id, the bearer token, and the declared size of its body."""

import hmac
import math
import secrets
from collections.abc import Mapping

import orjson

from miles_router.answers import Gate, Scope, Send, authorized
from miles_router.config import RouterConfig
from miles_router.front import Front as ConnectionsFront
from miles_router.sessions.dialects.dialect import Failure
from miles_router.sessions.dialects.table import dialect_of

REQUEST_ID = "miles.request_id"
"""Where a connection's scope holds the id of its request."""


class Front:
    """Answers 401 and 413 itself, in the caller's dialect; every answer carries the id of its request.

    token: what `Authorization: Bearer` or Anthropic's `x-api-key` must carry; None lets everyone in.
    """

    def __init__(self, *, token: str | None, body_limit_bytes: int) -> None:
        self._token = token
        self._limit = body_limit_bytes

    async def refused(self, scope: Scope, send: Send) -> bool:
        """Answer and return True, or return False for a call that may enter."""
        if not self._may_enter(scope):
            told = "expected this server's token as 'Authorization: Bearer' or 'x-api-key'."
            await refuse(scope, send, 401, told, {"WWW-Authenticate": "Bearer"})
            return True
        for name, value in scope["headers"]:
            if name == b"content-length" and not value.isdigit():
                await refuse(scope, send, 400, "Content-Length: expected a number of bytes.")
                return True
            if name == b"content-length" and _number(value) > self._limit:
                await refuse(scope, send, 413, f"expected a body of at most {self._limit} bytes, found more.")
                return True
        return False

    def _may_enter(self, scope: Scope) -> bool:
        if authorized(scope, self._token) or self._token is None:
            return True
        wanted = self._token.encode()
        return any(name == b"x-api-key" and hmac.compare_digest(value, wanted) for name, value in scope["headers"])


def callers_side() -> ConnectionsFront:
    """The callers' connections of a server without a proxy: every request goes to the app.

    Deadlines are the router's; the token and the size of bodies are the app's to check.
    """
    gate = Gate(token=None, body_limit_bytes=RouterConfig().body_limit_bytes)
    return ConnectionsFront(RouterConfig(), gate, is_direct=lambda _: False)


def with_request_id(scope: Scope, send: Send) -> Send:
    """Draw the request's id and return a `send` that adds it to the answer's headers."""
    identity = f"req_{secrets.token_hex(12)}"
    scope[REQUEST_ID] = identity
    header = (dialect_of(scope).request_id_header.encode(), identity.encode())

    async def sending(message: dict[str, object]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), header]}  # type: ignore[misc]
        await send(message)

    return sending


async def refuse(scope: Scope, send: Send, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
    """A whole answer that tells a failure in the caller's dialect."""
    if REQUEST_ID not in scope:
        send = with_request_id(scope, send)
    body = failure_body(scope, Failure(status=status, message=message, request_id=scope[REQUEST_ID]))
    fields = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    fields += [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


def failure_body(scope: Scope, failure: Failure) -> bytes:
    """The failure in the dialect of the connection."""
    return orjson.dumps(dialect_of(scope).error(failure))


def _number(digits: bytes) -> float:
    # Python refuses to read thousands of digits.
    return int(digits) if len(digits) < 1000 else math.inf
