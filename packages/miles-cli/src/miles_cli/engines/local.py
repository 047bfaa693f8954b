"""The local engine behind SGLang's HTTP surface. Nothing heavy is imported until an app is made."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from miles_core import env
from miles_megatron.engine.config import EngineConfig

if TYPE_CHECKING:
    from miles_cli.engines.text_codec import TextCodec
    from miles_megatron.engine.core import EngineCore

BODY_LIMIT_BYTES = 64 << 20


class LocalEngineConfig(EngineConfig):
    """The local engine: our scheduler and cache around the trainer's own model code."""

    type: Literal["local"] = "local"
    count: int = Field(1, ge=1)
    """Engines to run."""
    body_limit_bytes: int = Field(BODY_LIMIT_BYTES, gt=0)
    """Largest request body."""
    health_timeout_s: float = Field(30.0, gt=0)
    """Longest wait of `/health_generate` for its token."""

    def core_config(self) -> EngineConfig:
        """The part that the core takes."""
        return EngineConfig(**self.model_dump(include=set(EngineConfig.model_fields)))


def create_engine_app(
    core: "EngineCore",
    *,
    text: "TextCodec | None" = None,
    token: str | None = None,
    body_limit_bytes: int = BODY_LIMIT_BYTES,
    health_timeout_s: float = 30.0,
) -> Any:
    """An ASGI app with the engine's calls. text: for text prompts, chats and answers' text; token: asked of callers."""
    from miles_cli.engines.local_app import EngineApp

    return EngineApp(core, text=text, token=token, body_limit_bytes=body_limit_bytes, health_timeout_s=health_timeout_s)


def open_engine(
    config: LocalEngineConfig, model_dir: Path | str, *, token: str | None = None
) -> "tuple[EngineCore, Any]":
    """Load a model folder: its core, to be closed by the caller, and its app."""
    from miles_cli.engines.text_codec import TextCodec
    from miles_megatron.engine.core import EngineCore

    text = TextCodec.of_folder(Path(model_dir))
    core = EngineCore(config.core_config(), model_dir, decode=text.decode if text else None)
    app = create_engine_app(
        core,
        text=text,
        token=token,
        body_limit_bytes=config.body_limit_bytes,
        health_timeout_s=config.health_timeout_s,
    )
    return core, app


def serve(
    config: LocalEngineConfig,
    model_dir: Path | str,
    *,
    host: str = "127.0.0.1",
    port: int = 30000,
    token: str | None = None,
    listener: socket.socket | None = None,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Load and serve until SIGINT or SIGTERM. on_ready: called with the URL once the engine answers."""
    prepare_process(config.threads)
    from miles_router.serve import bind, run

    listener = listener or bind(host, port)  # an address that is taken is found before a model is loaded
    try:
        core, app = open_engine(config, model_dir, token=token)
        try:
            run(app, listener=listener, on_ready=on_ready, drain_s=1.0)
        finally:
            core.close()
    finally:
        listener.close()


def prepare_process(threads: int) -> None:
    """Set, before torch is imported, what keeps OpenMP threads from spinning on cores that others need."""
    env.export("OMP_WAIT_POLICY", "PASSIVE")
    env.export("OMP_NUM_THREADS", str(threads))
    env.export("TOKENIZERS_PARALLELISM", "false")
    env.export("HF_HUB_DISABLE_PROGRESS_BARS", "1")
