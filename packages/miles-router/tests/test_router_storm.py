"""A storm: engines as processes that die, hang and lie under hundreds of calls, in front of them a router process."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter

import aiohttp
import httpx
import pytest

CALLS = 240
DEADLINE_S = 30.0

ENGINE = r"""
import asyncio, json, socket, sys

active = 0

def head(length, kind="application/json"):
    return f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n".encode()

def whole(value):
    data = json.dumps(value).encode()
    return head(len(data)) + data

async def misbehave(mode, nonce, writer):
    answer = whole({"nonce": nonce})
    if mode == "slow":
        await asyncio.sleep(0.3)
    if mode in ("ok", "slow"):
        writer.write(answer)
    elif mode == "500":
        writer.write(answer.replace(b"200 OK", b"500 Oops"))
    elif mode == "twice":
        writer.write(answer + answer)
    elif mode == "garbage":
        writer.write(b"HTTP/1.1 200 OK\r\n\xff\xfe: \x00\r\ncontent-length: banana\r\n\r\n")
        return False
    elif mode == "no_answer":
        return False
    elif mode == "short":
        writer.write(answer[:-5])
        return False
    elif mode in ("stream", "cut"):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for n in range(5):
            event = b"data: %d %d\n\n" % (nonce, n)
            writer.write(b"%x\r\n%b\r\n" % (len(event), event))
            await writer.drain()
            await asyncio.sleep(0.05)
            if mode == "cut" and n == 2:
                return False
        writer.write(b"0\r\n\r\n")
    elif mode == "hang":
        await asyncio.sleep(3600)
    return True

async def serve(reader, writer):
    global active
    counted = False
    try:
        while True:
            request = await reader.readuntil(b"\r\n\r\n")
            path = request.split(b" ")[1]
            fields = dict(line.lower().split(b": ", 1) for line in request.split(b"\r\n")[1:] if b": " in line)
            body = await reader.readexactly(int(fields.get(b"content-length", 0)))
            if path != b"/generate":
                writer.write(whole({"active": active, "weight_version": "0"}))
                continue
            asked = json.loads(body)
            active += 1
            counted = True
            work = asyncio.create_task(misbehave(asked["mode"], asked["nonce"], writer))
            gone = asyncio.create_task(reader.read(1))
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            left = gone.done()
            gone.cancel()
            if left:
                work.cancel()
                break
            active -= 1
            counted = False
            await asyncio.wait({gone})
            if not work.result():
                break
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        active -= counted
        writer.close()

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""

MODES = ["ok", "slow", "500", "twice", "garbage", "no_answer", "short", "stream", "cut", "hang"]


@pytest.fixture
def storm():
    """Three engine processes and a router process in front: (engines, their urls, router process, url)."""
    engines = [subprocess.Popen([sys.executable, "-c", ENGINE], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    urls = [f"http://127.0.0.1:{engine.stdout.readline().strip()}" for engine in engines]
    command = [sys.executable, "-c", ROUTER, *urls]
    router = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    url = router.stdout.readline().strip()
    yield engines, urls, router, url
    for process in (*engines, router):
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()
        process.stdout.close()


ROUTER = r"""
import sys
from miles_router.app import create_router_app
from miles_router.config import HealthConfig, RouterConfig
from miles_router.serve import run
health = HealthConfig(interval_s=0.2, timeout_s=1.0, max_backoff_s=0.5, failures=10_000)
config = RouterConfig(workers=tuple(sys.argv[1:]), health=health, idle_timeout_s=3.0, queue_timeout_s=5.0)
run(create_router_app(config), port=0, on_ready=lambda url: print(url, flush=True))
"""


def caller() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=DEADLINE_S)
    )


async def call(client, url, number) -> str:
    """One call and how it ended; its answer is its own, or it is none."""
    mode = MODES[number % len(MODES)]
    try:
        async with client.post(f"{url}/generate", json={"mode": mode, "nonce": number}) as answer:
            text = await answer.text()
    except (aiohttp.ClientError, TimeoutError) as error:
        return f"{mode} {type(error).__name__}"
    if answer.status == 200 and mode in ("stream", "cut"):
        assert text == "".join(f"data: {number} {n}\n\n" for n in range(5)), (mode, text)
    elif answer.status == 200:
        assert json.loads(text)["nonce"] == number, (mode, text)
    else:
        assert "error" in json.loads(text) or json.loads(text)["nonce"] == number
    return f"{mode} {answer.status}"


def settle(url: str, timeout_s: float = 10.0) -> list[dict]:
    """The workers when no call is in flight any more, as both reports say."""
    give_up = time.monotonic() + timeout_s
    while True:
        workers = httpx.get(f"{url}/list_workers").json()["workers"]
        metrics = httpx.get(f"{url}/metrics").text
        lines = [
            line for line in metrics.splitlines() if line.startswith(("miles_router_active{", "miles_router_queue "))
        ]
        if not any(worker["active"] for worker in workers) and all(line.endswith(" 0.0") for line in lines):
            assert len(lines) == len(workers) + 1
            return workers
        assert time.monotonic() < give_up, (workers, lines)
        time.sleep(0.05)


def working(engine: str) -> int:
    """Calls that an engine works on."""
    return httpx.get(f"{engine}/stats").json()["active"]


@pytest.mark.slow
def test_every_call_ends_in_time_and_nothing_leaks_when_engines_die_hang_and_lie(storm):
    engines, urls, _, url = storm
    settle(url)

    async def main():
        async with caller() as client:
            calls = [asyncio.create_task(call(client, url, number)) for number in range(CALLS)]
            await asyncio.sleep(0.5)
            os.kill(engines[0].pid, signal.SIGKILL)
            os.kill(engines[1].pid, signal.SIGSTOP)
            more = [asyncio.create_task(call(client, url, number)) for number in range(CALLS, 2 * CALLS)]
            await asyncio.sleep(4)
            os.kill(engines[1].pid, signal.SIGCONT)
            return await asyncio.gather(*calls, *more)

    started = time.monotonic()
    outcomes = Counter(asyncio.run(main()))
    assert time.monotonic() - started < DEADLINE_S, outcomes
    assert sum(outcomes.values()) == 2 * CALLS
    assert not any("Timeout" in outcome for outcome in outcomes), outcomes
    assert sum(count for outcome, count in outcomes.items() if outcome.endswith(" 200")) > CALLS // 2, outcomes
    workers = settle(url)
    assert [worker["state"] for worker in workers if worker["url"] == urls[0]] == ["quarantined"]
    # The survivors serve on, and hold nothing of calls that are over.
    for survivor in urls[1:]:
        give_up = time.monotonic() + 10
        while working(survivor):
            assert time.monotonic() < give_up
            time.sleep(0.05)
    assert httpx.post(f"{url}/generate", json={"mode": "ok", "nonce": 1}, timeout=20).json() == {"nonce": 1}


@pytest.mark.slow
def test_when_the_router_is_killed_its_engines_stop_working_for_nobody(storm):
    _, urls, router, url = storm
    settle(url)

    async def main():
        async with caller() as client:
            hanging = [n for n in range(len(MODES) * CALLS) if MODES[n % len(MODES)] == "hang"]
            calls = [asyncio.create_task(call(client, url, n)) for n in hanging]
            give_up = time.monotonic() + 15
            while sum(await asyncio.gather(*(asyncio.to_thread(working, u) for u in urls))) < CALLS:
                assert time.monotonic() < give_up
                await asyncio.sleep(0.05)
            os.kill(router.pid, signal.SIGKILL)
            return await asyncio.gather(*calls)

    assert set(asyncio.run(main())) <= {"hang ServerDisconnectedError", "hang ClientOSError"}
    give_up = time.monotonic() + 10
    while any(working(u) for u in urls):
        assert time.monotonic() < give_up
        time.sleep(0.05)
