"""What a control call says: fields of its query string or JSON object, checked before anything changes."""

import json
from collections.abc import Mapping
from typing import Any

from fastapi import Request

from miles_core.errors import ConfigError
from miles_router.body import BodyTooLargeError
from miles_router.versions import LARGEST

BODY_BYTES = 1 << 20
"""Largest body of a control call."""
TEXT_CHARS = 2048
"""Longest text in a control call."""


async def call_fields(request: Request, needed: str) -> Mapping[str, Any]:
    """The fields of the query string, or without any those of the body; ConfigError unless it is a JSON object.

    needed: the field that the message asks for.
    """
    if request.query_params:
        return dict(request.query_params)
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > BODY_BYTES:
            raise BodyTooLargeError(f"expected a body of at most {BODY_BYTES} bytes, found more.")
    try:
        fields = json.loads(body.decode())
    except (ValueError, RecursionError):
        raise ConfigError(f"expected a JSON object with {needed}, in UTF-8, found a body that is not JSON.") from None
    if not isinstance(fields, dict):
        raise ConfigError(f"expected a JSON object with {needed}, found {type(fields).__name__}.")
    return fields


def text_field(fields: Mapping[str, Any], name: str, *, default: str | None = None) -> str:
    """A text that can be shown again. default: what an absent or empty field means; None requires one."""
    value = fields.get(name) or default
    if not isinstance(value, str) or len(value) > TEXT_CHARS:
        raise ConfigError(f"{name}: expected a string of at most {TEXT_CHARS} characters, in the query or in the body.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{name}: expected Unicode text, found half of a surrogate pair.") from None
    return value


def version_field(fields: Mapping[str, Any], name: str) -> int:
    """A weight version: a number from 0 on that 64 bits hold."""
    value = fields.get(name)
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
        value = int(value)  # a query string has no numbers
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise ConfigError(f"{name}: expected a whole number from 0 to {LARGEST}, found {str(value)[:40]!r}.")
    return value
