"""Frames between the reward runner and its worker processes: a JSON head and raw bytes, never a pickle.

A frame is the length of the head (4 bytes, big-endian), the length of the body (4 bytes), the head, the body.
"""

from collections.abc import Mapping
from typing import Any

import orjson

PREFIX_BYTES = 8


def pack(head: Mapping[str, Any], body: bytes = b"") -> bytes:
    """One frame."""
    text = orjson.dumps(head)
    return len(text).to_bytes(4, "big") + len(body).to_bytes(4, "big") + text + body


def lengths(prefix: bytes) -> tuple[int, int]:
    """Bytes of the head and of the body that follow the 8-byte prefix."""
    return int.from_bytes(prefix[:4], "big"), int.from_bytes(prefix[4:], "big")
