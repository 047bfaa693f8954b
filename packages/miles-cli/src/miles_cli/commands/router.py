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
    engine_token: Annotated[
        str | None, typer.Option(envvar="MILES_ENGINE_TOKEN", callback=usable, help="Bearer token the engines need.")
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            metavar="NAME[,OPTION=VALUE...]",
            help="Who gets a call: least_active, round_robin, power_of_two, session_affinity, cache_aware, or "
            "module:attribute of your own.",
        ),
    ] = "least_active",
    middleware: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[,OPTION=VALUE...]",
            help="What stands around the calls: prefix_tokens, or module:attribute of your own; repeat for several.",
        ),
    ] = None,
    queue_timeout: Annotated[float, typer.Option(min=0.001, help="Seconds a call waits for an engine.")] = 30.0,
    drain: Annotated[float, typer.Option(min=0.0, help="Seconds for calls to end after SIGTERM.")] = 10.0,
    reuse_port: Annotated[
        bool, typer.Option("--reuse-port", help="Share the port with the process that is to be replaced.")
    ] = False,
) -> None:
    """Balance OpenAI and SGLang calls over engines, with health checks, quarantine and streaming."""
    from miles_router.app import create_router_app
    from miles_router.config import RouterConfig
    from miles_router.middleware.table import middleware_of
    from miles_router.policies.table import policy_of
    from miles_router.serve import bind, run

    config = RouterConfig(
        workers=tuple(worker),
        token=token,
        worker_token=engine_token,
        policy=policy_of(policy),
        middleware=tuple(middleware_of(text) for text in middleware or ()),
        queue_timeout_s=queue_timeout,
    )
    app = create_router_app(config)
    run(app, listener=bind(host, port, reuse_port=reuse_port), drain_s=drain, on_ready=typer.echo)
