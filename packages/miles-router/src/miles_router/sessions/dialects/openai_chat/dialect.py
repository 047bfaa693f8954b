"""OpenAI chat completions as a dialect."""

from collections.abc import Mapping
from typing import Any

from miles_router.sessions.dialects.dialect import Failure
from miles_router.sessions.dialects.openai_chat.request import NAME, ChatRequest, parse_request
from miles_router.sessions.dialects.openai_errors import openai_error, openai_model, openai_models
from miles_router.sessions.dialects.sse import COMMENT_PING
from miles_router.sessions.session import Session


class OpenAIChat:
    """`POST .../v1/chat/completions`."""

    name = NAME
    ping = COMMENT_PING
    request_id_header = "x-request-id"

    def read(self, body: bytes, session: Session) -> ChatRequest:
        """The request in a body."""
        return parse_request(body)

    def error(self, failure: Failure) -> Mapping[str, Any]:
        """OpenAI's error body."""
        return openai_error(failure)

    def model(self, name: str) -> Mapping[str, Any]:
        """OpenAI's model object."""
        return openai_model(name)

    def models(self, name: str) -> Mapping[str, Any]:
        """OpenAI's list of models."""
        return openai_models(name)
