"""SGLang as the engine: started with an interpreter of its own, or joined where it already runs."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import httpx
from pydantic import Field, model_validator

from miles_core import env
from miles_core.config import Config
from miles_core.errors import ConfigError, DeadlineError, EngineError

POLL_S = 0.25
LOG_TAIL_BYTES = 2000


class SglangConfig(Config):
    """SGLang servers: `python` starts them, `urls` joins servers that already run; one of the two is given."""

    type: Literal["sglang"] = "sglang"
    count: int = Field(1, ge=1)
    """Servers to start; with `urls`, as many as there are URLs."""
    python: str | None = None
    """Interpreter of an environment that has SGLang; its pins exclude ours, so it is never this one."""
    urls: tuple[str, ...] = ()
    """Base URLs of running servers."""
    threads: int = Field(1, ge=1)
    """OpenMP threads of each server that is started."""
    tp_size: int = Field(1, ge=1)
    """GPUs of each server that is started."""
    context_length: int | None = Field(None, gt=1)
    """Most tokens of prompt and output together; the model's own limit when not given."""
    extra_args: tuple[str, ...] = ()
    """Further arguments of `sglang.launch_server`, as on its command line."""
    extra_env: Mapping[str, str] = {}
    """Further environment variables of the server."""
    start_timeout_s: float = Field(900.0, gt=0)
    """Longest wait for a server to answer."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if bool(self.python) == bool(self.urls):
            raise ValueError("expected either `python`, to start SGLang, or `urls`, to join servers that run.")
        if self.urls and self.count not in (1, len(self.urls)):
            raise ValueError(f"expected a count of {len(self.urls)}, one for each URL, found {self.count}.")
        return self


def launch_arguments(
    config: SglangConfig, *, model_dir: Path | str, host: str, port: int, token: str | None
) -> list[str]:
    """The command line that starts one server; ConfigError when the recipe names no interpreter."""
    if not config.python:
        raise ConfigError("engines.python: expected the interpreter of an environment that has SGLang, found none.")
    arguments = [config.python, "-m", "sglang.launch_server", "--model-path", str(model_dir)]
    arguments += ["--host", host, "--port", str(port), "--tp-size", str(config.tp_size), "--weight-version", "0"]
    if config.context_length is not None:
        arguments += ["--context-length", str(config.context_length)]
    if token is not None:
        arguments += ["--api-key", token]
    return [*arguments, *config.extra_args]


def launch_environment(config: SglangConfig) -> dict[str, str]:
    """The server's environment: this process's own, without the network of model hubs, with the recipe's on top."""
    threads = {"OMP_NUM_THREADS": str(config.threads), "HF_HUB_OFFLINE": "1"}
    return env.child_environment({**threads, **config.extra_env})


@dataclass(slots=True)
class SglangServer:
    """A server that this process started. Everything it prints goes to `log`."""

    url: str
    process: "subprocess.Popen[bytes]"
    log: Path
    token: str | None = None

    @classmethod
    def start(
        cls, config: SglangConfig, *, model_dir: Path | str, host: str, port: int, log: Path, token: str | None = None
    ) -> Self:
        """Start the process; it serves once `wait_healthy` returns. ConfigError when it cannot be started."""
        arguments = launch_arguments(config, model_dir=model_dir, host=host, port=port, token=token)
        with log.open("ab") as output:
            try:
                process = subprocess.Popen(
                    arguments,
                    env=launch_environment(config),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise ConfigError(f"engines.python: {config.python} cannot be started: {error.strerror}.") from error
        return cls(url=f"http://{host}:{port}", process=process, log=log, token=token)

    async def wait_healthy(self, *, timeout_s: float) -> None:
        """Return when it answers. EngineError with the end of its log when it dies, DeadlineError when it is late."""
        await wait_healthy(self.url, timeout_s=timeout_s, token=self.token, died=self._died)

    def stop(self, *, timeout_s: float = 20.0) -> None:
        """End the server and the processes it started: asked first, killed when late."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, sign)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout_s)

    def _died(self) -> str | None:
        code = self.process.poll()
        if code is None:
            return None
        tail = self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
        return f"SGLang ended with code {code} before it served; {self.log} ends with: {tail}"


async def wait_healthy(
    url: str, *, timeout_s: float, token: str | None = None, died: Callable[[], str | None] | None = None
) -> None:
    """Return when `GET /health` answers 200; DeadlineError after `timeout_s` seconds.

    died: asked between tries; a text it returns is raised as EngineError.
    """
    give_up = time.monotonic() + timeout_s
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with httpx.AsyncClient(trust_env=False, headers=headers, timeout=5.0) as client:
        found = "no answer"
        while time.monotonic() < give_up:
            reason = died() if died is not None else None
            if reason is not None:
                raise EngineError(reason)
            try:
                answer = await client.get(f"{url}/health")
            except httpx.HTTPError as error:
                found = type(error).__name__
            else:
                if answer.status_code == httpx.codes.OK:
                    return
                found = f"status {answer.status_code}"
            await asyncio.sleep(POLL_S)
    raise DeadlineError(f"waited {timeout_s:g} s for the engine at {url} to serve; the last try found {found}.")


async def join(config: SglangConfig, *, token: str | None = None) -> Sequence[str]:
    """The URLs of the recipe, once every server answers."""
    urls = [url.rstrip("/") for url in config.urls]
    await asyncio.gather(*(wait_healthy(url, timeout_s=config.start_timeout_s, token=token) for url in urls))
    return urls
