"""Server-sent events."""

from collections.abc import Mapping
from typing import Any

import orjson

COMMENT_PING = b": ping\n\n"
"""A comment, which readers of events skip."""


def data_event(value: Mapping[str, Any]) -> bytes:
    """An event without a name."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


def typed_event(value: Mapping[str, Any]) -> bytes:
    """An event named after the value's type."""
    return b"event: " + value["type"].encode() + b"\ndata: " + orjson.dumps(value) + b"\n\n"
