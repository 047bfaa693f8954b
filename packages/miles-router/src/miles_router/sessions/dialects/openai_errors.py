"""Failures and the list of models as OpenAI writes them, the same for chat completions and responses."""

from collections.abc import Mapping
from typing import Any

from miles_core.errors import MilesError
from miles_router.answers import error_type
from miles_router.sessions.dialects.dialect import Failure


def openai_error(failure: Failure) -> Mapping[str, Any]:
    """`{"error": {"message", "type", "param", "code"}}`."""
    return {
        "error": {
            "message": failure.message,
            "type": error_type(failure.status),
            "param": failure.param,
            "code": failure.code or str(failure.status),
        }
    }


def status_of(error: MilesError) -> int:
    """The HTTP status of a failure on the way of an answer."""
    return getattr(error, "status", None) or 500


def openai_model(name: str) -> Mapping[str, Any]:
    """One model."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "miles"}


def openai_models(name: str) -> Mapping[str, Any]:
    """The list of the one model."""
    return {"object": "list", "data": [openai_model(name)]}
