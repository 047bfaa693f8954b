"""About how many bytes a turn takes in memory, so that sessions can be bounded."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from miles_router.sessions.tree import Turn

SAMPLED_TOKEN_BYTES = 100
"""An id, its log-probability and its version as Python keeps them, pointers included."""
PROMPT_TOKEN_BYTES = 36
TURN_BYTES = 6000
"""Everything of a turn that does not depend on its length."""
TEXT_FACTOR = 3
"""Messages are kept as objects and once more as marked text."""


def turn_bytes(turn: Turn) -> int:
    """The size of a turn beside what it shares with its parent."""
    generation = turn.generation
    sampled = 0 if generation is None else len(generation.ids)
    routing = 0 if generation is None or generation.routing is None else generation.routing.nbytes
    before = turn.transcript if generation is None else turn.transcript.parent
    prompt = 0 if before is None else before.last.num_tokens
    text = _json_bytes(turn.new_messages) + _json_bytes([turn.message])
    return TURN_BYTES + SAMPLED_TOKEN_BYTES * sampled + PROMPT_TOKEN_BYTES * prompt + TEXT_FACTOR * text + routing


def _json_bytes(messages: Sequence[Mapping[str, Any]]) -> int:
    return len(orjson.dumps(messages))
