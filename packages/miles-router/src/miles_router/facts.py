"""What a policy may know of the request it places."""

from array import array
from collections.abc import Sequence
from typing import Any

import orjson

from miles_router.headers import Field

ROUTING_KEY = b"x-smg-routing-key"
"""The header that names what a call belongs to: calls with one key share a prefix."""

BYTES_PER_TOKEN = 4
"""Of `RequestFacts.prefix`: exact for token ids, about right for text."""


class RequestFacts:
    """Path, headers and body of one request; the body is parsed when a policy first asks for its prefix.

    headers: names in lower case. body: whole, or its beginning when the request is too large to be kept.
    """

    __slots__ = ("_prefix", "body", "headers", "path")

    def __init__(self, path: bytes = b"/", headers: Sequence[Field] = (), body: bytes = b"") -> None:
        self.path = path
        self.headers = headers
        self.body = body
        self._prefix: bytes | None = None

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header, None without one. name: in lower case."""
        return next((value for key, value in self.headers if key == name), None)

    @property
    def routing_key(self) -> bytes | None:
        """What `X-SMG-Routing-Key` holds; None when it is absent or empty."""
        return self.header(ROUTING_KEY) or None

    @property
    def prefix(self) -> bytes:
        """The prompt as bytes such that a prompt that continues another begins with that one's bytes.

        Token ids are four bytes each; text is UTF-8; a conversation is its JSON without the closing bracket, tools
        first. Empty when the request has no prompt that is understood.
        """
        if self._prefix is None:
            self._prefix = _prefix(self.body)
        return self._prefix


def _prefix(body: bytes) -> bytes:
    try:
        request = orjson.loads(body)
    except orjson.JSONDecodeError:
        return b""
    if not isinstance(request, dict):
        return b""
    for name in ("input_ids", "text", "prompt"):
        if request.get(name):
            return _one_prompt(request[name])
    instructions = request.get("system") or request.get("instructions")
    for name in ("messages", "input"):
        if turns := request.get(name):
            opened = orjson.dumps([request.get("tools"), instructions])
            return opened + (turns.encode() if isinstance(turns, str) else orjson.dumps(turns)[:-1])
    return b""


def _one_prompt(prompt: Any) -> bytes:
    """A prompt as text or ids; of a batch, its first."""
    if isinstance(prompt, str):
        return prompt.encode("utf-8", "surrogatepass")
    if not isinstance(prompt, list) or not prompt:
        return b""
    if isinstance(prompt[0], (list, str)):
        return _one_prompt(prompt[0])
    try:
        return array("I", prompt).tobytes()
    except (TypeError, OverflowError):  # not ids; the worker will say so
        return b""
