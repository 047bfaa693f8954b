"""A real SGLang server on a CPU, started once, with the tiny random model.

`MILES_SGLANG_PYTHON` names the interpreter of an environment that has SGLang; `nox -s sglang` makes one.
"""

import asyncio
import importlib.util
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from miles_cli.engines.sglang import SglangConfig, SglangServer
from miles_core import env

STUB = Path(__file__).parent / "stub"
ARGUMENTS = (
    "--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--grammar-backend",
    "none", "--mem-fraction-static", "0.1", "--max-total-tokens", "8192", "--max-running-requests", "16",
)  # fmt: skip
START_S = 300.0


def tiny_model_writer() -> Callable[[Path], Path]:
    """`write_tiny_model` of the cli's tests."""
    source = Path(__file__).parents[2] / "packages" / "miles-cli" / "tests" / "conftest.py"
    spec = importlib.util.spec_from_file_location("miles_cli_test_models", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.write_tiny_model


@pytest.fixture(scope="session")
def sglang_python() -> str:
    """The interpreter that has SGLang."""
    found = env.get("MILES_SGLANG_PYTHON")
    if not found:
        pytest.skip("MILES_SGLANG_PYTHON names no interpreter with SGLang; `nox -s sglang` makes one")
    return found


@pytest.fixture(scope="session")
def sglang_config(sglang_python: str) -> SglangConfig:
    """How a server is started without a GPU."""
    return SglangConfig(
        python=sglang_python,
        extra_args=ARGUMENTS,
        extra_env={"SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": str(STUB)},
        start_timeout_s=START_S,
    )


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's folder."""
    return tiny_model_writer()(tmp_path_factory.mktemp("sglang") / "model")


@pytest.fixture(scope="session")
def sglang_url(sglang_config: SglangConfig, model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of a server that answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("sglang-log") / "server.log"
    server = SglangServer.start(sglang_config, model_dir=model_dir, host="127.0.0.1", port=port, log=log)
    try:
        asyncio.run(server.wait_healthy(timeout_s=START_S))
        yield server.url
    finally:
        server.stop()


@pytest.fixture(scope="session")
def sessions_url(sglang_url: str, model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Router and session server in one process of their own, in front of the real engine."""
    log = tmp_path_factory.mktemp("miles-log") / "router.log"
    command = [
        sys.executable,
        "-m",
        "miles_router",
        "--model-dir",
        str(model_dir),
        "--worker",
        sglang_url,
        "--port",
        "0",
    ]
    with log.open("w") as errors:
        process = subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, stderr=errors, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("listening on "), f"{line!r}; {log.read_text()}"
    try:
        yield line.removeprefix("listening on ").strip()
    finally:
        process.terminate()
        process.wait(timeout=30)
        process.stdout.close()
