"""How many tokens prompt and answer may have."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from miles_core.errors import SessionError
from miles_router.sessions.engine import EngineClient

SGLANG_RESERVE = 6
"""SGLang's `max_req_input_len` lies this much under the tokens that context and cache hold."""


@dataclass(frozen=True, slots=True)
class Limits:
    """tokens: most of prompt and answer together. prompt: most of the prompt."""

    tokens: int
    prompt: int

    def less(self, margin: int) -> "Limits":
        """The same with so many tokens left to the engine."""
        return Limits(self.tokens - margin, self.prompt - margin)

    def room(self, prompt: int, *, most: int | None = None) -> int:
        """Tokens that may be sampled after such a prompt, 0 or less without room. most: of prompt and answer."""
        if prompt > self.prompt:
            return 0
        return min(self.tokens, most or self.tokens) - prompt


def limits_of(length: int) -> Limits:
    """The limits of an engine that uses its whole context."""
    return Limits(length, length - 1)


async def engine_limits(engine: EngineClient, model_dir: Path) -> Limits:
    """What the engine reports, else the model folder's `max_position_embeddings`; SessionError 500 without either."""
    reported: dict[str, Any] = {}
    for path in ("/model_info", "/server_info"):
        reported |= {name: value for name, value in (await engine.info(path)).items() if value is not None}
    found = read_limits(reported)
    if found is not None:
        return found
    config = model_dir / "config.json"
    if config.is_file():
        fields = json.loads(config.read_text())
        length = fields.get("max_position_embeddings") or fields.get("text_config", {}).get("max_position_embeddings")
        if isinstance(length, int):
            return limits_of(length)
    raise SessionError(
        f"expected context_length from the engine or max_position_embeddings in {config.name}, found neither; "
        "set context_length.",
        status=500,
    )


def read_limits(info: Mapping[str, Any]) -> Limits | None:
    """The limits in an engine's report, None when it holds none.

    SGLang refuses prompts of `max_req_input_len` tokens and more, and requests whose prompt and answer reach the end of
    what fits. Its `context_length` may be null, and its cache may hold less than the context.
    """
    length, most_input = info.get("context_length"), info.get("max_req_input_len")
    if isinstance(most_input, int) and most_input > 0:
        return Limits(most_input + SGLANG_RESERVE - 2, most_input - 1)
    return limits_of(length) if isinstance(length, int) and length > 0 else None
