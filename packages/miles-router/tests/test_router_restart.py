"""A router is replaced by another process while calls are under way: nothing that had begun is lost."""

import json
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest

BODY = {"input_ids": [1, 2, 3]}


@pytest.fixture
def start():
    """Starts routers as processes: (process, url). Those that still run at the end are killed."""
    processes = []

    def run(port: int, *arguments: str) -> tuple[subprocess.Popen, str]:
        command = [sys.executable, "-m", "miles_router", "--port", str(port), *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        line = process.stdout.readline()
        assert line.startswith("listening on "), line
        return process, line.removeprefix("listening on ").strip()

    yield run
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return True
    return False


def streaming(url: str, found: dict) -> threading.Thread:
    """Reads a long stream in a thread; `found` tells its beginning and its text."""

    def read() -> None:
        with httpx.stream("POST", f"{url}/generate", json={**BODY, "stream": True}, timeout=30) as answer:
            found["text"] = ""
            for piece in answer.iter_text():
                found["text"] += piece

    thread = threading.Thread(target=read)
    thread.start()
    return thread


def test_a_stream_outlives_sigterm_while_its_successor_listens_on_the_same_port(bench, Reply, start, until):
    engine, worker = bench.engine(lambda prompt, body: Reply("0123456789abcdef", step_s=0.1))
    old, url = start(free_port(), "--worker", worker, "--drain", "30")
    port = int(url.rpartition(":")[2])
    found: dict = {}
    reader = streaming(url, found)
    until(lambda: "data:" in found.get("text", ""), "the stream to begin")
    old.send_signal(signal.SIGTERM)
    until(lambda: refused(port), "the listener to be closed")
    _, successor = start(port, "--worker", worker)
    assert successor == url
    assert httpx.post(f"{url}/generate", json=BODY, timeout=20).status_code == 200
    reader.join(30)
    assert found["text"].endswith("data: [DONE]\n\n")
    whole = json.loads(found["text"].split("\n\n")[-3].removeprefix("data: "))
    assert whole["output_ids"] == engine.ids_of(Reply("0123456789abcdef"))
    assert old.wait(20) == 0


def test_a_stream_longer_than_the_deadline_is_cut_and_the_process_ends(bench, Reply, start, until):
    engine, worker = bench.engine(lambda prompt, body: Reply("0123456789" * 9, step_s=0.5))
    old, url = start(free_port(), "--worker", worker, "--drain", "1")
    found: dict = {}
    broke = []

    def read() -> None:
        try:
            with httpx.stream("POST", f"{url}/generate", json={**BODY, "stream": True}, timeout=30) as answer:
                for piece in answer.iter_text():
                    found["text"] = piece
        except httpx.TransportError as error:
            broke.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    until(lambda: "text" in found, "the stream to begin")
    started = time.monotonic()
    old.send_signal(signal.SIGTERM)
    assert old.wait(20) == 0
    assert time.monotonic() - started < 10
    reader.join(10)
    assert len(broke) == 1
    until(lambda: engine.active == 0, "the engine's call to end")


@pytest.mark.slow
def test_callers_notice_nothing_of_a_replacement_that_shares_the_port(bench, start):
    """Calls go on without pause, each on a connection of its own, while one router joins and the other leaves."""
    _, worker = bench.engine()
    port = free_port()
    old, url = start(port, "--worker", worker, "--reuse-port")
    outcomes: list[object] = []
    stop = threading.Event()

    def call() -> None:
        while not stop.is_set():
            try:
                outcomes.append(httpx.post(f"{url}/generate", json=BODY, timeout=20).status_code)
            except httpx.TransportError as error:
                outcomes.append(error)

    callers = [threading.Thread(target=call) for _ in range(3)]
    for caller in callers:
        caller.start()
    start(port, "--worker", worker, "--reuse-port")
    time.sleep(0.5)
    old.send_signal(signal.SIGTERM)
    assert old.wait(20) == 0
    before = len(outcomes)
    time.sleep(0.5)
    stop.set()
    for caller in callers:
        caller.join(20)
    assert len(outcomes) > before
    assert set(outcomes) == {200}, [outcome for outcome in outcomes if outcome != 200][:3]
