"""The router against its peers in one run: small requests and streams, by wall clock and by CPU second."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).parent / "proxies"))

from load import BODY, CHAT, drive, request
from peers import Peer, cpu_s, fastapi_httpx, free_port, miles, nginx, sglang_router, start

PEERS: Sequence[Callable[[ExitStack, int], Peer]] = (miles, sglang_router, nginx, fastapi_httpx)
SMALL, STREAM = request("/generate", BODY), request("/v1/chat/completions", CHAT)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of load. unit: what is counted."""

    title: str
    unit: str
    message: bytes
    connections: int


KINDS = (
    Kind("POST /generate, 16 connections", "requests", SMALL, 16),
    Kind("POST /generate, 64 connections", "requests", SMALL, 64),
    Kind("POST /generate, 256 connections", "requests", SMALL, 256),
    Kind("200 concurrent streams", "events", STREAM, 200),
)


@dataclass(slots=True)
class Row:
    """What a peer did under one kind of load: the best of its rounds each, failures of all. Times in seconds."""

    per_s: float = 0.0
    per_cpu_s: float = 0.0
    p50_s: float = float("inf")
    p99_s: float = float("inf")
    failures: int = 0


def measure_once(peer: Peer, kind: Kind, row: Row, *, seconds: float) -> None:
    """One round."""
    cpu = cpu_s(peer.pid) if peer.pid is not None else 0.0
    started = time.perf_counter()
    found = uvloop.run(drive(peer.port, kind.message, connections=kind.connections, seconds=seconds))
    wall = time.perf_counter() - started
    row.failures += found.failures
    if not found.times:
        return
    done = found.events if kind.unit == "events" else len(found.times)
    row.per_s = max(row.per_s, done / wall)
    if peer.pid is not None:
        row.per_cpu_s = max(row.per_cpu_s, done / max(cpu_s(peer.pid) - cpu, 0.01))
    row.p50_s = min(row.p50_s, found.times[len(found.times) // 2])
    row.p99_s = min(row.p99_s, found.times[int(len(found.times) * 0.99)])


def table(kind: Kind, rows: Sequence[tuple[str, Row]], absent: Sequence[str]) -> str:
    """Markdown; ratios are of work per CPU second, to sglang-router where it ran."""
    by_name = dict(rows)
    base = by_name.get("sglang-router")
    lines = [
        f"| {kind.title} | {kind.unit}/s | per CPU second | to sglang-router | p50 ms | p99 ms | failures |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in rows:
        per_core = f"{row.per_cpu_s:,.0f}" if row.per_cpu_s else ""
        ratio = f"{row.per_cpu_s / base.per_cpu_s:.2f}" if base and base.per_cpu_s and row.per_cpu_s else ""
        times = f"{row.p50_s * 1e3:.2f} | {row.p99_s * 1e3:.2f}"
        lines.append(f"| {name} | {row.per_s:,.0f} | {per_core} | {ratio} | {times} | {row.failures} |")
    return "\n".join([*lines, *(f"| {line} | | | | | | |" for line in absent)])


def main() -> None:
    """Print a table for each kind of load."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=3.0, help="length of a round")
    options.add_argument("--rounds", type=int, default=3, help="rounds of each, taken in turns")
    chosen, _ = options.parse_known_args()
    with ExitStack() as stack:
        worker = free_port()
        engine = [sys.executable, str(Path(__file__).parent / "proxies" / "engine.py"), str(worker)]
        peers = [start(stack, "direct", engine, worker, counted=False)]
        absent = []
        for begin in PEERS:
            try:
                peers.append(begin(stack, worker))
            except OSError as error:
                absent.append(f"{begin.__name__}: {error}")
        time.sleep(2.0)  # until every peer has found the engine well
        for kind in KINDS:
            rows = [(peer.name, Row()) for peer in peers]
            for _ in range(chosen.rounds):
                for peer, (_, row) in zip(peers, rows, strict=True):
                    measure_once(peer, kind, row, seconds=chosen.seconds)
            print(table(kind, rows, absent), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
