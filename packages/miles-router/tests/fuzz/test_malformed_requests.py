"""Whatever is sent, the answer is the caller's fault or a success, in the dialect's shape; and nothing stays behind."""

import asyncio
import json
import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .conftest import spoilt

SEEDS = 100


def problem(wire, answer) -> str | None:
    """What is wrong with an answer, None when it may be given."""
    if answer.status is None:
        return None if wire.cut is not None else "no answer"
    if answer.status >= 500:
        return f"status {answer.status}"
    events = answer.headers.get(b"content-type", b"").startswith(b"text/event-stream")
    if events and any(mark in answer.body for mark in (b'"server_error"', b'"api_error"', b"response.failed")):
        return "a stream that failed"
    if wire.method == "HEAD" or answer.status < 400:
        return None
    body = json.loads(answer.body)
    fields = {"message", "type"} if body.get("type") == "error" else {"message", "type", "param", "code"}
    error = body["error"]
    return None if set(error) == fields and error["message"] and "Traceback" not in error["message"] else "its body"


async def storm(server, seed: int, count: int) -> Counter:
    """So many requests, eight at a time. AssertionError with the request that was answered wrongly."""
    rng = random.Random(seed)
    seen: Counter = Counter()
    tasks_before = len(asyncio.all_tasks())
    session = await server.create()

    async def one(wire):
        answer = await asyncio.wait_for(server.call(wire), 20)
        found = problem(wire, answer)
        assert found is None, f"{found}: {wire} got {answer.status} {answer.body[:400]!r}"
        seen[answer.status] += 1

    for start in range(0, count, 8):
        wires = [spoilt(rng, session) for _ in range(min(8, count - start))]
        await asyncio.gather(*(one(wire) for wire in wires))
        if session not in {known.session_id for known in server.app.service.store.all()} or rng.random() < 0.02:
            await server.settle()
            session = await server.create()
    await server.settle()
    for _ in range(400):
        if len(asyncio.all_tasks()) <= tasks_before and server.engine.active == 0:
            break
        await asyncio.sleep(0.005)
    assert len(asyncio.all_tasks()) <= tasks_before
    assert server.engine.active == 0
    return seen


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_a_few_hundred_malformed_requests(fuzz_server, seed):
    seen = fuzz_server.runner.run(storm(fuzz_server, seed, 100))
    assert seen[400] > 0
    assert seen[200] > 0
    assert sum(seen.values()) <= 100


@pytest.mark.slow
def test_a_hundred_thousand_malformed_requests(fuzz_server, capsys):
    seen: Counter = Counter()
    for seed in range(SEEDS):
        seen += fuzz_server.runner.run(storm(fuzz_server, seed, 1000))
    with capsys.disabled():
        print(f"\n{seen.total()} malformed requests: {dict(seen)}")
    assert seen.total() == SEEDS * 1000
