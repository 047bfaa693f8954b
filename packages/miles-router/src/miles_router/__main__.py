"""`python -m miles_router`: a router, a session server, or both in one process."""

import argparse
import logging
from collections.abc import Sequence

from fastapi import FastAPI

from miles_core import env
from miles_core.errors import ConfigError, MilesError
from miles_router.app import create_router_app
from miles_router.config import HealthConfig, RouterConfig
from miles_router.middleware.table import middleware_of
from miles_router.policies.table import POLICY_NAMES, policy_of
from miles_router.serve import bind, run, url_of

EXAMPLES = """
examples:
  python -m miles_router --worker http://127.0.0.1:30000 --worker http://127.0.0.1:30001
      route to two engines; further ones join by POST /add_worker
  python -m miles_router --worker https://models.example.org/v1
      in front of any OpenAI-compatible server
  python -m miles_router --worker URL --worker URL --policy session_affinity
      calls with one X-SMG-Routing-Key go to one engine, whose prefix cache is warm
  python -m miles_router --model-dir MODEL --worker http://127.0.0.1:30000
      the same, with a session server under /sessions
  python -m miles_router --model-dir MODEL --engine-url http://127.0.0.1:30080
      a session server alone, in front of a router or an engine
  python -m miles_router --model-dir MODEL --engine-url http://127.0.0.1:30080 --log-dir LOG --processes 3
      three session server processes behind one port; a session outlives the death of its process

The bearer token that callers need is read from MILES_TOKEN, the one for engines from MILES_ENGINE_TOKEN.
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(
        prog="python -m miles_router",
        description="Router and session server in front of SGLang-compatible engines.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("--worker", action="append", default=[], metavar="URL", help="an engine; may be repeated")
    options.add_argument("--model-dir", metavar="DIR", help="folder with tokenizer and chat template; serves /sessions")
    options.add_argument("--engine-url", metavar="URL", help="where a session server without workers sends its turns")
    options.add_argument("--host", default="127.0.0.1", help="address to listen on (default: loopback only)")
    options.add_argument("--port", type=int, default=30080, help="0 takes a free one (default: 30080)")
    options.add_argument("--context-length", type=int, metavar="N", help="context in tokens (default: ask)")
    options.add_argument(
        "--policy",
        default="least_active",
        metavar="NAME[,OPTION=VALUE...]",
        help=f"who gets a call: {', '.join(POLICY_NAMES)}, or module:attribute of your own (default: least_active)",
    )
    options.add_argument(
        "--middleware",
        action="append",
        default=[],
        metavar="NAME[,OPTION=VALUE...]",
        help="what stands around the calls: prefix_tokens, or module:attribute of your own; may be repeated",
    )
    options.add_argument("--queue-timeout", type=float, default=30.0, metavar="S", help="wait for a worker (30)")
    options.add_argument("--ttl", type=float, default=3600.0, metavar="S", help="life of an idle session (3600)")
    options.add_argument("--log-dir", metavar="DIR", help="keep sessions on disk there; they outlive the process")
    options.add_argument(
        "--fsync", default="interval", choices=["none", "interval", "always"], help="when the log is forced to disk"
    )
    options.add_argument(
        "--processes", type=int, default=1, metavar="N", help="session server processes that share the log (1)"
    )
    options.add_argument("--max-connections", type=int, metavar="N", help="connections beyond this are answered 503")
    options.add_argument("--probe-interval", type=float, default=1.0, metavar="S", help="between probes (1)")
    options.add_argument("--drain", type=float, default=10.0, metavar="S", help="for calls to end after SIGTERM (10)")
    options.add_argument("--reuse-port", action="store_true", help="share the port with the process to be replaced")
    options.add_argument("--log-level", default="warning", choices=["debug", "info", "warning", "error"])
    return options


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until SIGINT or SIGTERM."""
    options = parser().parse_args(argv)
    if options.engine_url and (options.worker or not options.model_dir):
        parser().error("--engine-url goes with --model-dir and without --worker.")
    if (options.log_dir or options.processes != 1) and not options.model_dir:
        parser().error("--log-dir and --processes are the session server's; they go with --model-dir.")
    if options.processes < 1 or (options.processes > 1 and not options.log_dir):
        parser().error("--processes: expected 1, or more together with --log-dir, which they share.")
    logging.basicConfig(level=options.log_level.upper(), format="%(asctime)s router %(levelname)s %(message)s")
    try:
        listener = bind(options.host, options.port, reuse_port=options.reuse_port)
    except ConfigError as error:
        parser().error(str(error))
    try:
        app = _app(options, own_url=url_of(listener))
    except (MilesError, ValueError, OSError) as error:
        listener.close()
        parser().error(str(error))
    run(
        app,
        listener=listener,
        log_level=options.log_level,
        max_connections=options.max_connections,
        drain_s=options.drain,
        on_ready=lambda url: print(f"listening on {url}", flush=True),
    )


def _app(options: argparse.Namespace, *, own_url: str) -> object:
    token, engine_token = env.get("MILES_TOKEN"), env.get("MILES_ENGINE_TOKEN")
    sessions: FastAPI | None = None
    if options.model_dir:
        # A router alone starts without the tokenizer and what else sessions need.
        from miles_router.sessions.command import session_app  # noqa: PLC0415

        sessions = session_app(options, own_url=own_url, token=token, engine_token=engine_token)
    if options.engine_url:
        return sessions
    config_of_router = RouterConfig(
        workers=tuple(options.worker),
        token=token,
        worker_token=engine_token,
        queue_timeout_s=options.queue_timeout,
        health=HealthConfig(interval_s=options.probe_interval),
        policy=policy_of(options.policy),
        middleware=tuple(middleware_of(text) for text in options.middleware),
    )
    return create_router_app(config_of_router, sessions=sessions)


if __name__ == "__main__":
    main()
