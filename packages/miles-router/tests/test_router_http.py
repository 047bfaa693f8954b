"""The router over real HTTP: control calls, headers, bodies, streaming, and the queue."""

import threading
import time

import httpx
import pytest

from miles_router.policies.table import policy_of

GENERATE = {"input_ids": [1, 2, 3], "return_logprob": True}


def test_calls_reach_the_workers_evenly_and_answers_come_back_untouched(bench, Reply):
    engines = [bench.engine(lambda prompt, body: Reply("abc")) for _ in range(2)]
    app, url = bench.router(*[u for _, u in engines])
    client = bench.client(url)
    for _ in range(6):
        answer = client.post("/generate", json=GENERATE)
        direct = httpx.post(engines[0][1] + "/generate", json=GENERATE)
        assert answer.status_code == 200
        assert answer.content == direct.content
    assert [len(engine.calls) for engine, _ in engines] == [3 + 6, 3]
    assert all(worker.active == 0 for worker in app.pool.workers)


def test_hop_by_hop_and_recomputed_headers_stop_here_and_the_rest_travels(bench):
    _, worker = bench.engine()
    _, url = bench.router(worker)
    answer = bench.client(url).request(
        "PUT",
        "/echo?a=1&b=%2F",
        content=b"x" * 10,
        headers=[
            ("X-SMG-Routing-Key", "session-1"),
            ("X-Many", "1"),
            ("X-Many", "2"),
            ("Connection", "X-Hop, keep-alive"),
            ("X-Hop", "1"),
            ("TE", "trailers"),
        ],
    )
    seen = answer.json()
    names = [name for name, _ in seen["headers"]]
    assert (seen["method"], seen["query"], seen["size"]) == ("PUT", "a=1&b=%2F", 10)
    assert ["x-smg-routing-key", "session-1"] in seen["headers"]
    assert [value for name, value in seen["headers"] if name == "x-many"] == ["1", "2"]
    assert not {"x-hop", "te", "connection", "keep-alive"} & set(names)
    assert names.count("host") == names.count("content-length") == 1
    assert dict(seen["headers"])["host"] == worker.removeprefix("http://")
    # On the way back: no duplicates of what this server writes itself, and nothing meant for the other connection.
    fields = [name.lower() for name, _ in answer.headers.multi_items()]
    assert fields.count("content-length") == fields.count("date") == 1
    assert "server" not in fields
    assert answer.headers.get_list("x-twice") == ["1", "2"]
    assert "x-private" not in fields


def test_a_status_of_the_worker_is_the_status_of_the_answer(bench, Reply):
    _, worker = bench.engine(lambda prompt, body: Reply(status=400))
    _, url = bench.router(worker)
    answer = bench.client(url).post("/generate", json=GENERATE)
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "scripted")
    assert bench.client(url).get("/nothing/here").status_code == 404


def test_a_large_body_is_streamed_up_whole(bench):
    _, worker = bench.engine()
    _, url = bench.router(worker, replay_bytes=1000)
    client = bench.client(url)
    size = 3_000_000
    assert client.post("/echo", content=b"x" * size).json()["size"] == size
    pieces = (b"y" * 10_000 for _ in range(100))
    assert client.post("/echo", content=pieces).json()["size"] == 1_000_000


def test_a_body_over_the_limit_is_413_declared_or_not(bench):
    engine, worker = bench.engine()
    app, url = bench.router(worker, body_limit_bytes=5000, replay_bytes=1000)
    client = bench.client(url)
    assert client.post("/generate", content=b"x" * 5001).status_code == 413
    answer = client.post("/generate", content=(b"x" * 100 for _ in range(60)))
    assert answer.status_code == 413
    assert answer.json()["error"]["type"] == "request_too_large"
    assert engine.calls == []
    assert app.pool.workers[0].active == 0


def test_pieces_of_a_stream_arrive_while_the_worker_still_writes(bench, Reply):
    _engine, worker = bench.engine(lambda prompt, body: Reply("abcdef", step_s=0.05))
    _, url = bench.router(worker)
    times = []
    with bench.client(url).stream("POST", "/generate", json={**GENERATE, "stream": True}) as answer:
        text = b""
        for piece in answer.iter_raw():
            times.append(time.monotonic())
            text += piece
    assert answer.headers["content-type"] == "text/event-stream"
    assert text.endswith(b"data: [DONE]\n\n")
    assert times[-1] - times[0] > 0.2
    assert len(times) >= 5


def test_a_reader_that_stops_holds_the_worker_back(bench):
    sent = 0

    async def flood(scope, receive, send):
        nonlocal sent
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/flood":
            for _ in range(4000):
                await send({"type": "http.response.body", "body": b"z" * 65536, "more_body": True})
                sent += 1
        await send({"type": "http.response.body", "body": b"{}"})

    _, url = bench.router(bench.serve(flood))
    with bench.client(url).stream("GET", "/flood") as answer:
        pieces = answer.iter_raw()
        next(pieces)
        before = -1
        while before != sent:
            before = sent
            time.sleep(0.3)
        # 4,000 pieces are 250 MB; what is under way is bounded by the sockets' and the proxy's buffers.
        assert sent < 400
        assert sum(map(len, pieces)) > 3990 * 65536


def test_a_caller_that_leaves_ends_the_workers_call(bench, Reply, until):
    engine, worker = bench.engine(lambda prompt, body: Reply("abcdefgh", step_s=0.2))
    app, url = bench.router(worker)
    with bench.client(url).stream("POST", "/generate", json={**GENERATE, "stream": True}) as answer:
        pieces = answer.iter_raw()
        next(pieces)
        assert engine.active == 1
    until(lambda: engine.left == 1, "the engine to see the caller leave")
    until(lambda: app.pool.workers[0].active == 0, "the count to return to zero")


def test_a_caller_that_leaves_before_the_answer_ends_the_workers_call(bench, Reply, until):
    engine, worker = bench.engine(lambda prompt, body: Reply(hang=True))
    app, url = bench.router(worker)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(url + "/generate", json=GENERATE, timeout=0.3)
    until(lambda: engine.left == 1, "the engine to see the caller leave")
    until(lambda: app.pool.workers[0].active == 0, "the count to return to zero")
    assert app.pool.workers[0].failures == 0


def test_without_workers_a_call_waits_for_one_to_come(bench, Reply):
    _, worker = bench.engine()
    _, url = bench.router(queue_timeout_s=10.0)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(httpx.post(url + "/generate", json=GENERATE, timeout=20)))
    thread.start()
    client = bench.client(url)
    while "miles_router_queue 1.0" not in client.get("/metrics").text:
        time.sleep(0.01)
    added = client.post("/add_worker", json={"url": worker}).json()
    assert (added["url"], added["state"]) == (worker, "healthy")
    thread.join(10)
    assert answers[0].status_code == 200


def test_past_the_queue_deadline_the_answer_is_503_with_retry_after(bench):
    _, url = bench.router(queue_timeout_s=0.1)
    started = time.monotonic()
    answer = bench.client(url).post("/generate", json=GENERATE)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert "no worker is registered" in answer.json()["error"]["message"]
    assert time.monotonic() - started < 2


def test_workers_are_listed_with_state_load_and_version(bench):
    engine, worker = bench.engine()
    engine.version = "default"
    _, url = bench.router(worker)
    listed = bench.client(url).get("/list_workers").json()["workers"]
    assert listed == [
        {
            "url": worker,
            "state": "healthy",
            "active": 0,
            "picks": 0,
            "weight_version": 0,
            "failures": 0,
            "reason": "",
        }
    ]


def test_after_a_new_version_only_workers_that_report_it_get_calls(bench):
    (old, old_url), (new, new_url) = bench.engine(), bench.engine()
    _app, url = bench.router(old_url, new_url)
    client = bench.client(url)
    new.version = "3"
    answer = client.post("/weight_version", json={"version": 3}).json()
    assert {w["url"]: w["state"] for w in answer["workers"]} == {old_url: "probing", new_url: "healthy"}
    for _ in range(4):
        assert client.post("/generate", json=GENERATE).status_code == 200
    assert (len(old.calls), len(new.calls)) == (0, 4)
    old.version = "3"
    while client.get("/list_workers").json()["workers"][0]["state"] != "healthy":
        time.sleep(0.01)
    for _ in range(2):
        client.post("/generate", json=GENERATE)
    assert len(old.calls) == 1 or len(old.calls) == 2


def test_a_worker_in_quarantine_returns_when_its_probe_succeeds(bench, until):
    (first, first_url), (second, second_url) = bench.engine(), bench.engine()
    app, url = bench.router(first_url, second_url)
    client = bench.client(url)
    first.healthy = False
    found = client.post("/quarantine", json={"url": first_url, "reason": "its push failed"}).json()["workers"][0]
    assert (found["state"], found["reason"]) == ("quarantined", "its push failed")
    for _ in range(3):
        client.post("/generate", json=GENERATE)
    assert (len(first.calls), len(second.calls)) == (0, 3)
    first.healthy = True
    until(lambda: app.pool.workers[0].state == "healthy", "re-admission")


def test_a_worker_that_stops_answering_its_probes_is_quarantined(bench, until):
    engine, worker = bench.engine()
    app, _ = bench.router(worker)
    engine.healthy = False
    until(lambda: app.pool.workers[0].state == "quarantined", "quarantine")
    assert app.pool.workers[0].reason == "/health answered 503"


def test_a_removed_worker_finishes_its_calls_and_gets_no_more(bench, Reply, until):
    engine, worker = bench.engine(lambda prompt, body: Reply("slow", delay_s=0.5))
    _app, url = bench.router(worker, queue_timeout_s=0.1)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(httpx.post(url + "/generate", json=GENERATE, timeout=20)))
    thread.start()
    until(lambda: engine.active == 1, "the call to arrive")
    client = bench.client(url)
    assert client.post(f"/remove_worker?url={worker}").json()["state"] == "draining"
    assert client.post("/generate", json=GENERATE).status_code == 503
    thread.join(5)
    assert answers[0].status_code == 200
    assert client.get("/list_workers").json() == {"workers": []}
    assert client.post("/remove_worker", json={"url": worker}).status_code == 404


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/add_worker", b"", "url"),
        ("/add_worker", b"{", "JSON"),
        ("/add_worker", b"[1]", "url"),
        ("/add_worker", b'{"url": "localhost"}', "base URL"),
        ("/quarantine", b'{"url": 3}', "url"),
        ("/weight_version", b'{"version": "new"}', "version"),
        ("/weight_version", b"{}", "version"),
    ],
)
def test_a_bad_control_call_is_400_with_what_was_expected(bench, path, body, says):
    _, url = bench.router()
    answer = bench.client(url).post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_the_token_guards_control_and_data_and_is_not_shown_to_workers(bench):
    _, worker = bench.engine()
    _, url = bench.router(worker, token="gate", worker_token="inner")
    stranger = bench.client(url)
    for path in ("/list_workers", "/echo", "/health", "/metrics"):
        answer = stranger.get(path)
        assert answer.status_code == 401
        assert answer.json()["error"]["type"] == "authentication_error"
    client = bench.client(url, headers={"Authorization": "Bearer gate"})
    assert client.get("/list_workers").status_code == 200
    seen = dict(client.get("/echo").json()["headers"])
    assert seen["authorization"] == "Bearer inner"


def test_without_a_token_of_its_own_the_router_passes_the_callers_on(bench):
    _, worker = bench.engine()
    _, url = bench.router(worker)
    seen = dict(bench.client(url, headers={"Authorization": "Bearer mine"}).get("/echo").json()["headers"])
    assert seen["authorization"] == "Bearer mine"


def test_metrics_count_answers_and_show_the_load(bench, Reply):
    _, worker = bench.engine(lambda prompt, body: Reply(status=400))
    _, url = bench.router(worker)
    client = bench.client(url)
    client.post("/generate", json=GENERATE)
    client.get("/echo")
    text = client.get("/metrics").text
    assert 'miles_router_answers_total{status="200"} 1.0' in text
    assert 'miles_router_answers_total{status="400"} 1.0' in text
    assert f'miles_router_active{{worker="{worker}"}} 0.0' in text
    assert 'miles_router_workers{state="healthy"} 1.0' in text


def test_metrics_tell_each_workers_picks_failures_and_state(bench, Reply):
    _, good = bench.engine()
    _, bad = bench.engine(lambda prompt, body: Reply(status=500))
    _, url = bench.router(good, bad, health={"failures": 2, "interval_s": 30.0})
    client = bench.client(url)
    for _ in range(8):
        client.post("/generate", json=GENERATE)
    text = client.get("/metrics").text
    assert f'miles_router_picks_total{{worker="{good}"}} 6.0' in text
    assert f'miles_router_picks_total{{worker="{bad}"}} 2.0' in text
    assert f'miles_router_failures_total{{worker="{bad}"}} 2.0' in text
    assert f'miles_router_worker_state{{state="quarantined",worker="{bad}"}} 1.0' in text
    assert f'miles_router_worker_state{{state="healthy",worker="{bad}"}} 0.0' in text
    assert 'miles_router_workers{state="healthy"} 1.0' in text


def test_statuses_that_http_does_not_know_share_one_series(bench, raw_server):
    app, url = bench.router(health={"interval_s": 30.0})
    for status in (299, 599):
        app.pool.add(raw_server(b"HTTP/1.1 %d Odd\r\ncontent-length: 0\r\n\r\n" % status))
    for worker in app.pool.workers:
        app.pool.probe_succeeded(worker, 0)
    client = bench.client(url)
    assert {client.post("/x").status_code for _ in range(4)} == {299, 599}
    assert 'miles_router_answers_total{status="other"} 4.0' in client.get("/metrics").text


def served_order(bench, Reply, until, calls, **options) -> list[int]:
    """Prompt lengths in the order of service, of calls that waited for a worker which takes one at a time."""
    order = []

    def script(prompt, body):
        order.append(len(body["input_ids"]))
        return Reply()

    _, worker = bench.engine(script)
    app, url = bench.router(max_active_per_worker=1, **options)

    def call(length, headers):
        httpx.post(f"{url}/generate", json={"input_ids": [1] * length}, headers=headers, timeout=20)

    threads = [threading.Thread(target=call, args=arguments) for arguments in calls]
    for number, thread in enumerate(threads):
        thread.start()
        until(lambda number=number: app.pool.waiting == number + 1, "the call to wait")
    httpx.post(f"{url}/add_worker", json={"url": worker})
    for thread in threads:
        thread.join(20)
    return order


def test_an_interactive_call_is_served_before_batch_calls_that_came_earlier(bench, Reply, until):
    # What is no number counts as none.
    calls = [(1, {}), (2, {"X-Priority": "-1"}), (3, {"X-Priority": "2"}), (4, {"X-Priority": "high"})]
    assert served_order(bench, Reply, until, calls, priority_head_start_s=60.0) == [3, 1, 4, 2]


def test_short_calls_come_first_where_the_config_says_so(bench, Reply, until):
    calls = [(500, {}), (400, {}), (3, {}), (2, {"X-Priority": "0"})]
    options = {"priority_head_start_s": 60.0, "interactive_bytes": 100}
    assert served_order(bench, Reply, until, calls, **options) == [3, 500, 400, 2]


def test_calls_of_a_session_reach_one_worker_and_the_next_when_it_dies(bench):
    engines = [bench.engine() for _ in range(3)]
    _, url = bench.router(*[u for _, u in engines], policy=policy_of("session_affinity"))
    client = bench.client(url, headers={"X-SMG-Routing-Key": "session-7"})
    for _ in range(5):
        client.post("/generate", json=GENERATE)
    assert sorted(len(engine.calls) for engine, _ in engines) == [0, 0, 5]
    (home,) = [u for engine, u in engines if engine.calls]
    client.post("/quarantine", json={"url": home})
    started = time.monotonic()
    for _ in range(2):
        assert client.post("/generate", json=GENERATE).status_code == 200
    assert time.monotonic() - started < 2
    assert all(engine.headers[0]["x-smg-routing-key"] == "session-7" for engine, _ in engines if engine.headers)
