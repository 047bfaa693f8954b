"""Anthropic Messages as a dialect."""

from collections.abc import Mapping
from typing import Any

from miles_router.sessions.dialects.anthropic.errors import anthropic_error
from miles_router.sessions.dialects.anthropic.request import NAME, MessagesRequest, parse_request
from miles_router.sessions.dialects.anthropic.stream import PING
from miles_router.sessions.dialects.dialect import Failure
from miles_router.sessions.session import Session


class AnthropicMessages:
    """`POST .../v1/messages`."""

    name = NAME
    ping = PING
    request_id_header = "request-id"

    def read(self, body: bytes, session: Session) -> MessagesRequest:
        """The request in a body."""
        return parse_request(body)

    def error(self, failure: Failure) -> Mapping[str, Any]:
        """Anthropic's error body."""
        return anthropic_error(failure)

    def model(self, name: str) -> Mapping[str, Any]:
        """Anthropic's model object."""
        return {"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"}

    def models(self, name: str) -> Mapping[str, Any]:
        """Anthropic's page of models."""
        return {"data": [self.model(name)], "has_more": False, "first_id": name, "last_id": name}
