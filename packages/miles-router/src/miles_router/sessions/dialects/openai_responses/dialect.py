"""OpenAI Responses as a dialect."""

from collections.abc import Mapping
from typing import Any

from miles_router.sessions.dialects.dialect import Failure
from miles_router.sessions.dialects.openai_errors import openai_error, openai_model, openai_models
from miles_router.sessions.dialects.openai_responses.request import NAME, ResponsesRequest, parse_request
from miles_router.sessions.dialects.sse import COMMENT_PING
from miles_router.sessions.session import Session


class OpenAIResponses:
    """`POST .../v1/responses`."""

    name = NAME
    ping = COMMENT_PING
    request_id_header = "x-request-id"

    def read(self, body: bytes, session: Session) -> ResponsesRequest:
        """The request in a body."""
        return parse_request(body, session)

    def error(self, failure: Failure) -> Mapping[str, Any]:
        """OpenAI's error body."""
        return openai_error(failure)

    def model(self, name: str) -> Mapping[str, Any]:
        """OpenAI's model object."""
        return openai_model(name)

    def models(self, name: str) -> Mapping[str, Any]:
        """OpenAI's list of models."""
        return openai_models(name)
