"""`miles engine`: the local engine on its own."""

from pathlib import Path
from typing import Annotated

import typer

from miles_cli.commands.token import usable


def engine(
    model_dir: Annotated[Path, typer.Argument(help="A Hugging Face model folder.", metavar="MODEL_DIR")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 30000,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the forward pass.")] = 1,
    token: Annotated[
        str | None, typer.Option(envvar="MILES_TOKEN", callback=usable, help="Bearer token callers must send.")
    ] = None,
) -> None:
    """Serve a model with SGLang's HTTP surface."""
    from miles_cli.engines.local import LocalEngineConfig, serve
    from miles_cli.model_folder import check_model_folder

    check_model_folder("MODEL_DIR", model_dir, weights=True)
    config = LocalEngineConfig(threads=threads)  # type: ignore[call-arg]
    serve(config, model_dir, host=host, port=port, token=token, on_ready=typer.echo)
