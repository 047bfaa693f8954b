"""`miles sessions`: a session server in front of an engine or router."""

from pathlib import Path
from typing import Annotated

import typer

from miles_cli.commands.token import usable


def sessions(
    model_dir: Annotated[Path, typer.Argument(help="Folder with the tokenizer and template.", metavar="MODEL_DIR")],
    engine_url: Annotated[str, typer.Option(help="URL of the engine or router that generates.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8001,
    token: Annotated[
        str | None, typer.Option(envvar="MILES_TOKEN", callback=usable, help="Bearer token callers must send.")
    ] = None,
) -> None:
    """Serve OpenAI chat completions that record exact tokens per session."""
    from miles_core.errors import ConfigError, TokenError
    from miles_router.serve import run
    from miles_router.sessions.app import create_session_app
    from miles_router.sessions.config import SessionServerConfig

    config = SessionServerConfig(engine_url=engine_url, model_dir=model_dir, token=token)
    try:
        app = create_session_app(config)
    except TokenError as error:
        raise ConfigError(f"MODEL_DIR: {error}") from error
    run(app, host=host, port=port, on_ready=typer.echo)
