"""`miles router`: an inference router in front of running engines."""

from typing import Annotated

import typer

from miles_cli.commands.token import usable


def router(
    worker: Annotated[list[str], typer.Option("--worker", help="URL of an engine; repeat for several.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    token: Annotated[
        str | None, typer.Option(envvar="MILES_TOKEN", callback=usable, help="Bearer token callers must send.")
    ] = None,
) -> None:
    """Balance OpenAI and SGLang calls over engines, with health checks, quarantine and streaming."""
    from miles_router.app import create_router_app
    from miles_router.config import RouterConfig
    from miles_router.serve import run

    run(create_router_app(RouterConfig(workers=tuple(worker), token=token)), host=host, port=port, on_ready=typer.echo)
