"""The session server that the command line asks for."""

import argparse

from fastapi import FastAPI

from miles_router.sessions.app import create_session_app
from miles_router.sessions.cluster.app import ClusterApp
from miles_router.sessions.config import SessionServerConfig
from miles_router.sessions.log.config import LogConfig


def session_app(options: argparse.Namespace, *, own_url: str, token: str | None, engine_token: str | None) -> FastAPI:
    """One process, or the front of several. own_url: of the router beside it, the engine unless options name one.

    token: what callers need; it opens that router, too. engine_token: for an engine that options name.
    """
    config = SessionServerConfig(
        engine_url=options.engine_url or own_url,
        model_dir=options.model_dir,
        token=token,
        engine_token=engine_token if options.engine_url else token,
        ttl_s=options.ttl,
        context_length=options.context_length,
        log=LogConfig(folder=options.log_dir, fsync=options.fsync) if options.log_dir else None,
    )
    if options.processes > 1:
        return ClusterApp(config, processes=options.processes, log_level=options.log_level)
    return create_session_app(config)
