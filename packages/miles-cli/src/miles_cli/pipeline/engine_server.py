"""The two kinds of engine as an engine process holds them."""

import asyncio
import os
import socket
import threading
from pathlib import Path

from miles_cli.engines.local import LocalEngineConfig, open_engine
from miles_cli.engines.sglang import SglangConfig, SglangServer, wait_healthy
from miles_router.serve import ServerThread


class LocalServer:
    """The local engine on a free loopback port."""

    child: int | None = None

    def __init__(self, config: LocalEngineConfig, model: Path, *, token: str | None) -> None:
        self._core, app = open_engine(config, model, token=token)
        self._server = ServerThread(app).start()
        self.url = self._server.url

    def stop(self) -> None:
        """Stop listening and end the engine's thread."""
        self._server.stop(timeout_s=1.0)
        self._core.close()


class SglangProcess:
    """An SGLang server: started as a child of this process, or joined by its URL.

    This process ends when the server does, so that its death is noticed like that of any engine. child: process id of
    a server that was started here.
    """

    def __init__(self, config: SglangConfig, model: Path, *, number: int, log: Path, token: str | None) -> None:
        self._server: SglangServer | None = None
        self.child: int | None = None
        if config.urls:
            self.url = config.urls[number].rstrip("/")
            asyncio.run(wait_healthy(self.url, timeout_s=config.start_timeout_s, token=token))
            return
        port = _free_port()
        server = SglangServer.start(config, model_dir=model, host="127.0.0.1", port=port, log=log, token=token)
        self._server, self.url, self.child = server, server.url, server.process.pid
        asyncio.run(server.wait_healthy(timeout_s=config.start_timeout_s))
        threading.Thread(target=self._follow, args=(server,), name="sglang", daemon=True).start()

    def stop(self) -> None:
        """End a server that was started here."""
        server, self._server = self._server, None
        if server is not None:
            server.stop(timeout_s=1.0)

    def _follow(self, server: SglangServer) -> None:
        server.process.wait()
        if self._server is not None:
            os._exit(1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
