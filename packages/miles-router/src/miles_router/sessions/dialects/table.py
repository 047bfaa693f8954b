"""Which dialect a call speaks."""

from collections.abc import Mapping

from miles_router.answers import Scope
from miles_router.sessions.dialects.anthropic.dialect import AnthropicMessages
from miles_router.sessions.dialects.dialect import Dialect
from miles_router.sessions.dialects.openai_chat.dialect import OpenAIChat
from miles_router.sessions.dialects.openai_responses.dialect import OpenAIResponses

OPENAI_CHAT, OPENAI_RESPONSES, ANTHROPIC = OpenAIChat(), OpenAIResponses(), AnthropicMessages()

ENDPOINTS: Mapping[str, Dialect] = {
    "/v1/chat/completions": OPENAI_CHAT,
    "/v1/responses": OPENAI_RESPONSES,
    "/v1/messages": ANTHROPIC,
    "/anthropic/v1/messages": ANTHROPIC,
}
"""Where each dialect is spoken, under a session's URL."""


def dialect_of(scope: Scope) -> Dialect:
    """The dialect of one connection, which also words its failures; OpenAI's where nothing tells."""
    path: str = scope["path"]
    if "/v1/messages" in path or "/anthropic/" in path or any(n == b"anthropic-version" for n, _ in scope["headers"]):
        return ANTHROPIC
    return OPENAI_RESPONSES if "/v1/responses" in path else OPENAI_CHAT
