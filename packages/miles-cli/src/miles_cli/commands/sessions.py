"""`miles sessions`: a session server in front of an engine or router."""

from pathlib import Path
from typing import Annotated, Literal

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
    log_dir: Annotated[
        Path | None, typer.Option(help="Keep sessions on disk there, so that they outlive the process.")
    ] = None,
    fsync: Annotated[
        Literal["none", "interval", "always"], typer.Option(help="When the log is forced to the disk.")
    ] = "interval",
    processes: Annotated[
        int, typer.Option(min=1, help="Processes that share the sessions through the log; one takes over for another.")
    ] = 1,
    ttl: Annotated[float, typer.Option(min=0.001, help="Seconds without a call after which a session goes.")] = 3600.0,
) -> None:
    """Serve chat completions, responses and messages that record exact tokens per session."""
    from miles_core.errors import ConfigError, TokenError
    from miles_router.serve import run
    from miles_router.sessions.app import create_session_app
    from miles_router.sessions.cluster.app import ClusterApp
    from miles_router.sessions.config import SessionServerConfig
    from miles_router.sessions.log.config import LogConfig

    log = LogConfig(folder=log_dir, fsync=fsync) if log_dir else None
    config = SessionServerConfig(engine_url=engine_url, model_dir=model_dir, token=token, log=log, ttl_s=ttl)
    try:
        app = ClusterApp(config, processes=processes) if processes > 1 else create_session_app(config)
    except TokenError as error:
        raise ConfigError(f"MODEL_DIR: {error}") from error
    run(app, host=host, port=port, on_ready=typer.echo)
