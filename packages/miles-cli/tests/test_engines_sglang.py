"""Starting and joining SGLang: the command line, the wait, the end of the process."""

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest
from pydantic import ValidationError

from miles_cli.engines.sglang import (
    SglangConfig,
    SglangServer,
    join,
    launch_arguments,
    launch_environment,
    wait_healthy,
)
from miles_core.errors import ConfigError, DeadlineError, EngineError

SERVER = """
import sys, http.server
port = int(sys.argv[sys.argv.index("--port") + 1])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        ok = self.path == "/health" and self.headers.get("Authorization") == "Bearer t"
        self.send_response(200 if ok else 401); self.end_headers()
    def log_message(self, *a): pass
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def interpreter(tmp_path):
    """An interpreter whose `sglang.launch_server` is a small real HTTP server."""
    package = tmp_path / "site" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "launch_server.py").write_text(SERVER)
    return SglangConfig(python=sys.executable, extra_env={"PYTHONPATH": str(tmp_path / "site")})


@pytest.fixture
def port():
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start(config, tmp_path, port):
    log = tmp_path / "log"
    return SglangServer.start(config, model_dir="/models/m", host="127.0.0.1", port=port, log=log, token="t")


def test_the_command_line_holds_what_the_recipe_says():
    config = SglangConfig(python="/env/bin/python", tp_size=2, context_length=4096, extra_args=("--device", "cpu"))
    found = launch_arguments(config, model_dir=Path("/m"), host="127.0.0.1", port=30000, token="t")
    assert " ".join(found) == (
        "/env/bin/python -m sglang.launch_server --model-path /m --host 127.0.0.1 --port 30000 --tp-size 2 "
        "--weight-version 0 --context-length 4096 --api-key t --device cpu"
    )


def test_the_environment_is_ours_with_the_recipes_on_top():
    found = launch_environment(SglangConfig(python="p", threads=3, extra_env={"HF_HUB_OFFLINE": "0", "A": "b"}))
    assert (found["OMP_NUM_THREADS"], found["HF_HUB_OFFLINE"], found["A"]) == ("3", "0", "b")
    assert found["PATH"] == os.environ["PATH"]


@pytest.mark.parametrize(
    "options", [{}, {"python": "p", "urls": ("http://a",)}, {"urls": ("http://a", "http://b"), "count": 3}]
)
def test_a_recipe_names_an_interpreter_or_urls_and_as_many_as_it_counts(options):
    with pytest.raises(ValidationError, match="expected"):
        SglangConfig(**options)


def test_a_started_server_is_waited_for_and_ended(interpreter, tmp_path, port):
    server = start(interpreter, tmp_path, port)
    try:
        asyncio.run(server.wait_healthy(timeout_s=60))
        joined = SglangConfig(urls=(server.url + "/",), start_timeout_s=10.0)
        assert asyncio.run(join(joined, token="t")) == [server.url]
    finally:
        server.stop()
    assert server.process.returncode is not None
    with pytest.raises(ProcessLookupError):
        os.killpg(server.process.pid, 0)


def test_a_server_that_dies_is_reported_with_the_end_of_its_log(tmp_path, port):
    config = SglangConfig(python=sys.executable, extra_env={"PYTHONPATH": str(tmp_path)})
    server = start(config, tmp_path, port)
    with pytest.raises(EngineError, match=r"(?s)ended with code 1 before it served.*No module named"):
        asyncio.run(server.wait_healthy(timeout_s=60))
    server.stop()


def test_a_missing_interpreter_is_one_sentence(tmp_path, port):
    with pytest.raises(ConfigError, match="/nowhere/python cannot be started: No such file"):
        start(SglangConfig(python="/nowhere/python"), tmp_path, port)


def test_a_server_that_never_answers_is_a_deadline_that_says_what_it_waited_for(port):
    began = time.monotonic()
    with pytest.raises(DeadlineError, match=rf"waited 1 s for the engine at http://127.0.0.1:{port}.*ConnectError"):
        asyncio.run(wait_healthy(f"http://127.0.0.1:{port}", timeout_s=1))
    assert time.monotonic() - began < 30
