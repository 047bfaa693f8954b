"""Workers that die, hang, lie and break off: calls end, counts return, nothing is generated twice after a byte."""

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest

GENERATE = {"input_ids": [1, 2, 3], "return_logprob": True}

SLOW_WORKER = """
import asyncio, socket, sys, uvicorn

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive(); await send({"type": "lifespan.startup.complete"})
        await receive(); await send({"type": "lifespan.shutdown.complete"}); return
    body = b"{}"
    if scope["path"] == "/generate":
        print("generating", flush=True)
        await asyncio.sleep(30)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": body})

listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])
"""


@pytest.fixture
def slow_process():
    """A worker in a process of its own, that never answers /generate: (process, url)."""
    process = subprocess.Popen([sys.executable, "-c", SLOW_WORKER], stdout=subprocess.PIPE, text=True)
    port = process.stdout.readline().strip()
    yield process, f"http://127.0.0.1:{port}"
    process.kill()
    process.wait()
    process.stdout.close()


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def idle(app) -> bool:
    return all(worker.active == 0 for worker in app.pool.workers) and app.pool.waiting == 0


def test_a_worker_killed_in_the_middle_of_a_call_is_replaced_by_another(bench, slow_process, until):
    process, slow_url = slow_process
    app, url = bench.router(slow_url, queue_timeout_s=5.0)
    engine, good_url = bench.engine()

    async def main():
        async with httpx.AsyncClient(base_url=url, timeout=20) as client:
            call = asyncio.create_task(client.post("/generate", json=GENERATE))
            await asyncio.to_thread(process.stdout.readline)
            await client.post("/add_worker", json={"url": good_url})
            os.kill(process.pid, signal.SIGKILL)
            return await call

    answer = asyncio.run(main())
    assert answer.status_code == 200
    assert len(engine.calls) == 1
    until(lambda: app.pool.workers[0].state == "quarantined", "the dead worker's quarantine")
    assert idle(app)


def test_a_dead_worker_costs_one_call_nothing_and_the_next_ones_are_not_sent_there(bench):
    engine, good = bench.engine()
    app, url = bench.router(good, health={"interval_s": 30.0})
    dead = closed_port()
    # As if it had been healthy a moment ago.
    app.pool.probe_succeeded(app.pool.add(dead), 0)
    client = bench.client(url)
    started = time.monotonic()
    for _ in range(6):
        assert client.post("/generate", json=GENERATE).status_code == 200
    assert time.monotonic() - started < 2
    (gone,) = [w for w in app.pool.workers if w.url == dead]
    assert (gone.state, gone.failures, gone.active) == ("quarantined", 1, 0)
    assert len(engine.calls) == 6


def test_an_answer_that_broke_off_after_its_first_byte_is_not_asked_for_again(bench, Reply, until):
    engines = [bench.engine(lambda prompt, body: Reply("abcdef", cut_after=2)) for _ in range(2)]
    app, url = bench.router(*[u for _, u in engines])
    got = []
    stream = bench.client(url).stream("POST", "/generate", json={**GENERATE, "stream": True})
    with stream as answer, pytest.raises(httpx.RemoteProtocolError):
        got.extend(answer.iter_raw())
    assert b"".join(got).count(b"data:") == 2
    assert sum(len(engine.calls) for engine, _ in engines) == 1
    until(lambda: idle(app), "the counts to return to zero")
    assert "miles_router_cut_answers_total 1.0" in bench.client(url).get("/metrics").text


def test_a_whole_answer_that_broke_off_is_502_and_not_asked_for_again(bench, raw_server):
    broken = raw_server(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nonly this")
    engine, good = bench.engine()
    app, url = bench.router(good, health={"interval_s": 30.0})
    app.pool.probe_succeeded(app.pool.add(broken), 0)
    app.pool.workers[1].turn = -1
    answer = bench.client(url).post("/generate", json=GENERATE)
    assert answer.status_code == 502
    assert engine.calls == []
    assert idle(app)


@pytest.mark.parametrize(
    "garbage",
    [
        b"what is this\r\n\r\n",
        b"HTTP/1.1 999999 X\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: abc\r\n\r\n",
        b"\x00\xff\x00",
    ],
)
def test_an_answer_that_is_not_http_is_502(bench, raw_server, garbage):
    app, url = bench.router(health={"interval_s": 30.0})
    app.pool.probe_succeeded(app.pool.add(raw_server(garbage)), 0)
    answer = bench.client(url).post("/generate", json=GENERATE)
    assert answer.status_code == 502
    assert answer.json()["error"]["type"] == "server_error"
    assert idle(app)


def test_a_connection_closed_without_an_answer_is_tried_on_the_next_worker(bench, raw_server):
    engine, good = bench.engine()
    app, url = bench.router(good, health={"interval_s": 30.0})
    app.pool.probe_succeeded(app.pool.add(raw_server(b"")), 0)
    app.pool.workers[1].turn = -1
    assert bench.client(url).post("/generate", json=GENERATE).status_code == 200
    assert len(engine.calls) == 1
    assert app.pool.workers[1].failures == 1
    assert "miles_router_retries_total 1.0" in bench.client(url).get("/metrics").text


def test_a_body_that_was_streamed_up_is_not_sent_a_second_time(bench, raw_server):
    engine, good = bench.engine()
    app, url = bench.router(good, health={"interval_s": 30.0}, replay_bytes=10)
    app.pool.probe_succeeded(app.pool.add(raw_server(b"")), 0)
    app.pool.workers[1].turn = -1
    pieces = (b"x" * 50_000 for _ in range(20))
    assert bench.client(url).post("/generate", content=pieces).status_code == 502
    assert engine.calls == []
    assert idle(app)


def test_a_worker_that_hangs_is_504_at_its_deadline_and_not_asked_for_again(bench, Reply, until):
    engines = [bench.engine(lambda prompt, body: Reply(hang=True)) for _ in range(2)]
    app, url = bench.router(*[u for _, u in engines], idle_timeout_s=0.3)
    answer = bench.client(url).post("/generate", json=GENERATE)
    assert answer.status_code == 504
    assert "waited 0.3 s" in answer.json()["error"]["message"]
    assert sum(len(engine.calls) for engine, _ in engines) == 1
    until(lambda: sum(engine.active for engine, _ in engines) == 0, "the worker's call to end")
    assert idle(app)


def test_failing_workers_leave_the_rotation_and_return(bench, Reply, until):
    broken = {"now": True}
    _bad, bad_url = bench.engine(lambda prompt, body: Reply(status=500 if broken["now"] else 200))
    _good, good_url = bench.engine()
    app, url = bench.router(bad_url, good_url, health={"interval_s": 0.3, "max_backoff_s": 0.3})
    client = bench.client(url)
    statuses = [client.post("/generate", json=GENERATE).status_code for _ in range(12)]
    assert statuses.count(500) == 3
    assert statuses[-5:] == [200] * 5
    broken["now"] = False
    until(lambda: app.pool.workers[0].state == "healthy", "re-admission")


def test_counts_return_to_zero_after_a_storm(bench, Reply, until, raw_server):
    dice = random.Random(5)

    def script(prompt, body):
        return dice.choice(
            [
                Reply("fine"),
                Reply("slow", delay_s=0.05),
                Reply(status=500),
                Reply(status=429),
                Reply("cut off", cut_after=1),
                Reply("steps", step_s=0.01),
            ]
        )

    engines = [bench.engine(script) for _ in range(3)]
    app, url = bench.router(*[u for _, u in engines], health={"failures": 1000}, queue_timeout_s=5.0)
    app.pool.add(raw_server(b""))

    async def call(client, number):
        body = {**GENERATE, "stream": number % 2 == 0}
        try:
            answer = await client.post("/generate", json=body, timeout=0.02 if number % 7 == 0 else 20)
        except httpx.TransportError as error:
            return type(error).__name__
        return answer.status_code

    async def main():
        limits = httpx.Limits(max_connections=64)
        async with httpx.AsyncClient(base_url=url, limits=limits) as client:
            return await asyncio.gather(*(call(client, n) for n in range(150)))

    outcomes = asyncio.run(main())
    assert len(outcomes) == 150
    assert outcomes.count(200) > 40
    until(lambda: idle(app), "the counts to return to zero")
    until(lambda: all(engine.active == 0 for engine, _ in engines), "the engines' calls to end")
