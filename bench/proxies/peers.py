"""The servers that are compared: how each is started, or why it cannot be."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parent
NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log stderr error;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  upstream engine {{ server 127.0.0.1:{worker}; keepalive 512; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=2048; keepalive_requests 1000000;
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}
"""


@dataclass(frozen=True, slots=True)
class Peer:
    """A server that was started. pid: None for one whose work is not counted."""

    name: str
    port: int
    pid: int | None


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def start(stack: ExitStack, name: str, command: Sequence[str], port: int, *, counted: bool = True) -> Peer:
    """A server process, waited for until it takes connections."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    stack.callback(process.wait, 10)
    stack.callback(process.terminate)
    give_up = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > give_up or process.poll() is not None:
                raise
            time.sleep(0.05)
        else:
            return Peer(name, port, process.pid if counted else None)


def miles(stack: ExitStack, worker: int) -> Peer:
    """This router."""
    port = free_port()
    command = [sys.executable, "-m", "miles_router", "--worker", f"http://127.0.0.1:{worker}", "--port", str(port)]
    return start(stack, "miles-router", command, port)


def fastapi_httpx(stack: ExitStack, worker: int) -> Peer:
    """The proxy that one writes first."""
    port = free_port()
    command = [sys.executable, str(HERE / "fastapi_httpx.py"), str(port), f"http://127.0.0.1:{worker}"]
    return start(stack, "FastAPI + httpx", command, port)


def sglang_router(stack: ExitStack, worker: int) -> Peer:
    """The Rust wheel, in an environment of its own that ends with the run; OSError when it cannot be installed."""
    folder = Path(stack.enter_context(TemporaryDirectory()))
    python = folder / "bin" / "python"
    for command in (
        ["uv", "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)],
        ["uv", "pip", "install", "--quiet", "--python", str(python), "sglang-router"],
    ):
        found = subprocess.run(command, capture_output=True, text=True)
        if found.returncode != 0:
            raise OSError(f"not installed: {found.stderr.strip().splitlines()[-1:]}")
    port = free_port()
    options = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
    options += ["--worker-urls", f"http://127.0.0.1:{worker}", "--policy", "round_robin", "--log-level", "error"]
    return start(stack, "sglang-router", [str(python), "-m", "sglang_router.launch_router", *options], port)


def nginx(stack: ExitStack, worker: int) -> Peer:
    """Nginx with kept connections and without buffering; OSError when it is not here."""
    binary = shutil.which("nginx")
    if binary is None:
        raise OSError("not installed")
    folder = stack.enter_context(TemporaryDirectory())
    port = free_port()
    config = Path(folder) / "nginx.conf"
    config.write_text(NGINX.format(folder=folder, worker=worker, port=port))
    return start(stack, "nginx", [binary, "-c", str(config), "-p", folder], port)


def cpu_s(pid: int) -> float:
    """CPU seconds of a process, all its threads and its children."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return own + sum(cpu_s(int(child)) for child in children)
