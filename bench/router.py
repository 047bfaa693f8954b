"""The router against a direct call: requests per second and latency of a small JSON POST at 16 connections."""

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import uvloop

CONNECTIONS = 16
ANSWER = json.dumps({"text": "", "output_ids": list(range(32)), "meta_info": {"weight_version": "0"}}).encode()
BODY = json.dumps({"input_ids": list(range(128)), "return_logprob": True}).encode()


async def engine(scope, receive, send) -> None:  # noqa: ANN001
    """An engine that answers at once: what is measured is the way to it."""
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    while (await receive()).get("more_body"):
        pass
    body = ANSWER if scope["path"] == "/generate" else b"{}"
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@dataclass(frozen=True, slots=True)
class Load:
    """What one run gave. Times in seconds."""

    requests_per_s: float
    p50_s: float
    p99_s: float


class _Caller(asyncio.Protocol):
    """One connection that sends the next request when the last answer is whole."""

    def __init__(self, request: bytes, times: list[float], ends_at: float, done: asyncio.Future[None]) -> None:
        self._request, self._times, self._ends_at, self._done = request, times, ends_at, done
        self._data = b""
        self._started = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._send()

    def _send(self) -> None:
        self._started = time.perf_counter()
        self._transport.write(self._request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self._data += data
        head = self._data.find(b"\r\n\r\n")
        if head < 0:
            return
        if not self._data.startswith(b"HTTP/1.1 200"):
            self._done.set_exception(RuntimeError(f"expected 200, found {self._data[:100]!r}."))
            return
        at = self._data.lower().find(b"content-length:")
        length = int(self._data[at + 15 : self._data.index(b"\r\n", at)])
        if len(self._data) < head + 4 + length:
            return
        now = time.perf_counter()
        self._times.append(now - self._started)
        self._data = b""
        if now < self._ends_at:
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._done.done():
            self._done.set_result(None)


async def load(port: int, *, seconds: float, connections: int) -> Load:
    """Call `/generate` at `port` from so many connections for so long."""
    head = (
        f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
    )
    loop = asyncio.get_running_loop()
    times: list[float] = []
    waiting = []
    started = time.perf_counter()
    for _ in range(connections):
        done: asyncio.Future[None] = loop.create_future()
        waiting.append(done)
        await loop.create_connection(
            lambda done=done: _Caller(head.encode() + BODY, times, started + seconds, done), "127.0.0.1", port
        )
    async with asyncio.timeout(seconds + 30):
        await asyncio.gather(*waiting)
    times.sort()
    return Load(len(times) / (time.perf_counter() - started), times[len(times) // 2], times[int(len(times) * 0.99)])


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def start(stack: ExitStack, command: Sequence[str], port: int) -> None:
    """A server process, waited for until `/health` answers."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    stack.callback(process.wait, 10)
    stack.callback(process.terminate)
    give_up = time.monotonic() + 30
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
        except OSError:
            if time.monotonic() > give_up or process.poll() is not None:
                raise
            time.sleep(0.05)
        else:
            return


def measure(*, seconds: float, rounds: int, connections: int) -> tuple[Load, Load]:
    """The best round of each, direct and through the router, taken in turns."""
    with ExitStack() as stack:
        worker, front = free_port(), free_port()
        start(stack, [sys.executable, __file__, "--engine", str(worker)], worker)
        command = [sys.executable, "-m", "miles_router", "--worker", f"http://127.0.0.1:{worker}", "--port", str(front)]
        start(stack, command, front)
        time.sleep(0.5)
        runs: dict[int, list[Load]] = {worker: [], front: []}
        for _ in range(rounds):
            for port, found in runs.items():
                found.append(uvloop.run(load(port, seconds=seconds, connections=connections)))
        best = [max(found, key=lambda run: run.requests_per_s) for found in runs.values()]
        return best[0], best[1]


def main() -> None:
    """Print a table of direct calls and calls through the router."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=3.0, help="length of each round")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--connections", type=int, default=CONNECTIONS)
    options.add_argument("--engine", type=int, metavar="PORT", help=argparse.SUPPRESS)
    chosen, _ = options.parse_known_args()
    if chosen.engine:
        import uvicorn

        uvicorn.run(engine, host="127.0.0.1", port=chosen.engine, log_level="error")
        return
    direct, routed = measure(seconds=chosen.seconds, rounds=chosen.rounds, connections=chosen.connections)
    print(f"| POST /generate, {chosen.connections} connections | requests/s | p50 ms | p99 ms |")
    print("|---|---|---|---|")
    for name, run in (("direct", direct), ("through the router", routed)):
        print(f"| {name} | {run.requests_per_s:,.0f} | {run.p50_s * 1e3:.2f} | {run.p99_s * 1e3:.2f} |")
    print(
        f"| router / direct | {routed.requests_per_s / direct.requests_per_s:.2f} | "
        f"{routed.p50_s / direct.p50_s:.2f} | {routed.p99_s / direct.p99_s:.2f} |"
    )


if __name__ == "__main__":
    main()
