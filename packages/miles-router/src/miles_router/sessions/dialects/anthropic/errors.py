"""Failures as Anthropic writes them."""

from collections.abc import Mapping
from typing import Any

from miles_router.sessions.dialects.dialect import Failure

KINDS: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def anthropic_error(failure: Failure) -> Mapping[str, Any]:
    """`{"type": "error", "error": {"type", "message"}, "request_id"}`."""
    kind = KINDS.get(failure.status, "invalid_request_error" if failure.status < 500 else "api_error")
    return {
        "type": "error",
        "error": {"type": kind, "message": failure.message},
        "request_id": failure.request_id,
    }
