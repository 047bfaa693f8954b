"""How many tokens prompt and answer may have together."""

import json
from pathlib import Path

from miles_core.errors import SessionError
from miles_router.sessions.engine import EngineClient


async def context_length(engine: EngineClient, model_dir: Path) -> int:
    """What the engine reports, else the model folder's `max_position_embeddings`; SessionError 500 without either."""
    length = await engine.context_length()
    if length is not None:
        return length
    config = model_dir / "config.json"
    if config.is_file():
        fields = json.loads(config.read_text())
        found = fields.get("max_position_embeddings") or fields.get("text_config", {}).get("max_position_embeddings")
        if isinstance(found, int):
            return found
    raise SessionError(
        f"expected context_length from the engine or max_position_embeddings in {config.name}, found neither; "
        "set context_length.",
        status=500,
    )
