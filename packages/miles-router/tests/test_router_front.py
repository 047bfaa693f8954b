"""The callers' side: what HTTP/1.1 allows, what it forbids, limits and deadlines. Raw sockets, real answers."""

import contextlib
import json
import socket
import threading
import time

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

POST = b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b"
BODY = json.dumps({"input_ids": [1, 2, 3]}).encode()


def connect(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def read_all(connection: socket.socket) -> bytes:
    """Everything until the server closes."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(65536):
            data += piece
    return data


def read_answers(connection: socket.socket, count: int) -> list[tuple[int, bytes]]:
    """Status and body of so many answers that declare their lengths; nothing may follow them yet."""
    data, found = b"", []
    while len(found) < count:
        head, mark, rest = data.partition(b"\r\n\r\n")
        fields = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:]) if mark else {}
        length = int(fields.get(b"content-length", 0))
        if mark and len(rest) >= length:
            found.append((int(head.split()[1]), rest[:length]))
            data = rest[length:]
        else:
            piece = connection.recv(65536)
            assert piece, f"closed after {found} and {data!r}"
            data += piece
    assert data == b""
    return found


def exchange(url: str, sent: bytes) -> bytes:
    with connect(url) as connection:
        connection.sendall(sent)
        return read_all(connection)


def test_requests_sent_in_one_go_are_answered_in_their_order(bench, Reply):
    delays = {1: 0.2, 2: 0.0, 3: 0.1}
    engine, worker = bench.engine(
        lambda prompt, body: Reply(ids=body["input_ids"], delay_s=delays[len(body["input_ids"])])
    )
    app, url = bench.router(worker)
    bodies = [json.dumps({"input_ids": [7] * n}).encode() for n in (1, 2, 3)]
    with connect(url) as connection:
        connection.sendall(b"".join(POST % (len(body), body) for body in bodies))
        answers = read_answers(connection, 3)
        assert [len(json.loads(body)["output_ids"]) for _, body in answers] == [1, 2, 3]
        connection.sendall(POST % (len(BODY), BODY))
        assert len(read_answers(connection, 1)) == 1
    assert len(engine.calls) == 4
    assert app.pool.workers[0].active == 0


def test_control_and_proxied_calls_share_a_connection(bench):
    _, worker = bench.engine()
    _, url = bench.router(worker)
    get = b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n"
    with connect(url) as connection:
        for path in (b"/health", b"/echo", b"/list_workers", b"/server_info", b"/nothing"):
            connection.sendall(get % path)
            assert read_answers(connection, 1)[0][0] == (404 if path == b"/nothing" else 200)
        connection.sendall(get % b"/health" + POST % (len(BODY), BODY) + get % b"/health")
        assert [status for status, _ in read_answers(connection, 3)] == [200, 200, 200]


def test_a_thousand_short_requests_in_one_go_do_not_nest(bench):
    _, url = bench.router(token="t")
    with connect(url) as connection:
        connection.sendall(b"GET /x HTTP/1.1\r\nhost: x\r\n\r\n" * 3000)
        assert [status for status, _ in read_answers(connection, 3000)] == [401] * 3000


def test_a_request_may_come_byte_by_byte_and_in_chunks(bench):
    _, worker = bench.engine()
    _, url = bench.router(worker)
    head = b"POST /echo?q=1 HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    with connect(url) as connection:
        for byte in head + b"3\r\nabc\r\n10\r\n" + b"x" * 16 + b"\r\n0\r\n\r\n":
            connection.sendall(bytes([byte]))
        seen = json.loads(read_answers(connection, 1)[0][1])
    assert (seen["size"], seen["query"]) == (19, "q=1")


def test_100_continue_is_answered_before_the_body_is_sent(bench):
    engine, worker = bench.engine()
    _, url = bench.router(worker)
    head = b"POST /generate HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: %d\r\n\r\n"
    with connect(url) as connection:
        connection.sendall(head % len(BODY))
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(BODY)
        assert read_answers(connection, 1)[0][0] == 200
    assert "expect" not in engine.headers[0]


def test_100_continue_is_not_answered_to_a_caller_without_the_token(bench):
    _, url = bench.router(token="t")
    head = b"POST /generate HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 10\r\n\r\n"
    with connect(url) as connection:
        connection.sendall(head)
        assert connection.recv(4096).startswith(b"HTTP/1.1 401")


def test_an_http_1_0_caller_gets_no_chunks_and_the_end_of_the_connection(bench, Reply):
    _, worker = bench.engine(lambda prompt, body: Reply("abc", step_s=0.01))
    _, url = bench.router(worker)
    body = json.dumps({"input_ids": [1], "stream": True}).encode()
    answer = exchange(url, b"POST /generate HTTP/1.0\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert rest.startswith(b"data: ")
    assert rest.endswith(b"data: [DONE]\n\n")


def test_connection_close_is_honoured(bench):
    _, worker = bench.engine()
    _, url = bench.router(worker)
    answer = exchange(url, b"GET /echo HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in answer


def test_a_target_in_absolute_form_is_cut_to_its_path(bench):
    _, worker = bench.engine()
    _, url = bench.router(worker)
    answer = exchange(url, b"GET http://other/echo?a=1 HTTP/1.1\r\nhost: other\r\nconnection: close\r\n\r\n")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["query"] == "a=1"


def test_an_escaped_control_path_is_still_the_routers_own(bench):
    engine, worker = bench.engine()
    _, url = bench.router(worker)
    answer = exchange(url, b"GET /list%5Fworkers HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["workers"][0]["url"] == worker
    assert engine.calls == []


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (b"GET /echo HTTP/9.9\r\n\r\n", 400),
        (b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n", 400),
        (b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n", 400),
        (b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello", 400),
        (b"GET /echo HTTP/1.1\r\nhost: x\r\nbad name: 1\r\n\r\n", 400),
        (b"GET /echo HTTP/1.1\r\nhost: x\r\nx: a\rb\r\n\r\n", 400),
        (b"GET /" + b"a" * 70_000, 431),
        (b"GET /echo HTTP/1.1\r\n" + b"x-pad: " + b"y" * 70_000, 431),
        (b"POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (b"CONNECT other:443 HTTP/1.1\r\nhost: other:443\r\n\r\n", 405),
    ],
)
def test_what_is_no_proper_request_is_refused_and_the_connection_closed(bench, sent, status):
    engine, worker = bench.engine()
    _, url = bench.router(worker)
    answer = exchange(url, sent)
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:200]
    assert "error" in json.loads(answer.partition(b"\r\n\r\n")[2])
    assert engine.calls == []


def test_an_offer_of_another_protocol_is_not_taken(bench):
    _, worker = bench.engine()
    _, url = bench.router(worker)
    head = b"GET /echo HTTP/1.1\r\nhost: x\r\nconnection: close, upgrade, http2-settings\r\nupgrade: h2c\r\n\r\n"
    answer = exchange(url, head)
    assert answer.startswith(b"HTTP/1.1 200")
    assert not any(
        name in ("upgrade", "http2-settings") for name, _ in json.loads(answer.partition(b"\r\n\r\n")[2])["headers"]
    )


def test_a_caller_that_dawdles_is_told_so_and_let_go(bench):
    engine, worker = bench.engine()
    _, url = bench.router(worker, head_timeout_s=0.3, body_timeout_s=0.3, keep_alive_s=0.3)
    assert exchange(url, b"POST /generate HT").startswith(b"HTTP/1.1 408")
    assert exchange(url, b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{").startswith(
        b"HTTP/1.1 408"
    )
    assert exchange(url, b"") == b""
    with connect(url) as connection:
        connection.sendall(POST % (len(BODY), BODY))
        assert read_answers(connection, 1)[0][0] == 200
        assert read_all(connection) == b""
    assert len(engine.calls) == 1


def test_a_caller_that_takes_its_time_within_the_deadlines_is_served(bench, Reply):
    _, worker = bench.engine(lambda prompt, body: Reply("ok", delay_s=0.8))
    _, url = bench.router(worker, head_timeout_s=0.4, body_timeout_s=0.4, keep_alive_s=0.4)
    with connect(url) as connection:
        connection.sendall(b"POST /generate HTTP/1.1\r\nhost: x\r\n")
        time.sleep(0.2)
        connection.sendall(b"content-length: %d\r\n\r\n" % len(BODY))
        for byte in BODY[:6]:
            time.sleep(0.1)
            connection.sendall(bytes([byte]))
        connection.sendall(BODY[6:])
        assert read_answers(connection, 1)[0][0] == 200


def test_a_caller_that_does_not_read_its_answer_is_let_go_and_the_worker_freed(bench, until):
    async def flood(scope, receive, send):
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(4000 if scope["path"] == "/flood" else 0):
            await send({"type": "http.response.body", "body": b"z" * 65536, "more_body": True})
        await send({"type": "http.response.body", "body": b"{}"})

    app, url = bench.router(bench.serve(flood), body_timeout_s=0.5)
    with connect(url) as connection:
        connection.sendall(b"GET /flood HTTP/1.1\r\nhost: x\r\n\r\n")
        until(lambda: app.pool.workers[0].active == 1, "the call to begin")
        until(lambda: app.pool.workers[0].active == 0, "the call to be given up")


def test_a_refused_body_is_read_so_that_its_sender_sees_why(bench):
    _, worker = bench.engine()
    _, url = bench.router(worker, body_limit_bytes=1000)
    with connect(url) as connection:
        connection.sendall(b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 300000\r\n\r\n" + b"x" * 300_000)
        status, body = read_answers(connection, 1)[0]
        assert (status, json.loads(body)["error"]["type"]) == (413, "request_too_large")
        connection.sendall(POST % (len(BODY), BODY))
        assert read_answers(connection, 1)[0][0] == 200


def test_a_connection_beyond_the_limit_is_503_and_the_others_live_on(bench):
    from miles_router.app import create_router_app
    from miles_router.config import RouterConfig
    from miles_router.serve import bind, run, url_of

    _, worker = bench.engine()
    listener = bind("127.0.0.1", 0)
    url = url_of(listener)
    app = create_router_app(RouterConfig(workers=(worker,)))
    ready = threading.Event()
    options = {"listener": listener, "max_connections": 2, "on_ready": lambda _: ready.set()}
    threading.Thread(target=run, args=(app,), kwargs=options, daemon=True).start()
    assert ready.wait(20)
    with connect(url) as first, connect(url) as second:
        for connection in (first, second):
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert read_answers(connection, 1)[0][0] == 200
        third = exchange(url, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert third.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1" in third
        first.sendall(POST % (len(BODY), BODY))
        assert read_answers(first, 1)[0][0] == 200


def test_a_caller_that_leaves_while_it_uploads_is_not_held_against_the_worker(bench, until):
    _, worker = bench.engine()
    app, url = bench.router(worker, replay_bytes=100)
    with connect(url) as connection:
        connection.sendall(b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 9000\r\n\r\n" + b"x" * 3000)
        until(lambda: app.pool.workers[0].active == 1, "the upload to begin")
    until(lambda: app.pool.workers[0].active == 0, "the upload to be given up")
    assert app.pool.workers[0].failures == 0
    assert 'answers_total{status="0"} 1.0' in bench.client(url).get("/metrics").text


PIECES = st.sampled_from(
    [
        *[
            b"GET ",
            b"POST ",
            b"/generate",
            b"/echo",
            b"/health",
            b"*",
            b" HTTP/1.1",
            b" HTTP/1.0",
            b"\r\n",
            b"\n",
            b"\r\n\r\n",
        ],
        *[b"host: x\r\n", b"content-length: 3\r\n", b"content-length: x\r\n", b"transfer-encoding: chunked\r\n"],
        *[b"connection: close\r\n", b"upgrade: h2c\r\nconnection: upgrade\r\n", b"expect: 100-continue\r\n"],
        *[b"3\r\nabc\r\n", b"0\r\n\r\n", b"{}", b"\x00", b"\xff", b"a" * 300, b" ", b":"],
    ]
)


def test_no_bytes_make_it_fail_or_leak(bench, until, caplog):
    """Whatever is sent, the answers are of the 2xx to 4xx kind, the connection ends, and the router goes on."""
    _, worker = bench.engine()
    app, url = bench.router(worker)

    @given(st.lists(PIECES, max_size=14).map(b"".join))
    @settings(max_examples=300, deadline=None)
    def check(sent):
        with connect(url) as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR)
            answer = read_all(connection)
        assert b"HTTP/1.1 5" not in answer

    check()
    until(lambda: app.pool.workers[0].active == 0, "the counts to return to zero")
    until(lambda: not app.front.connections, "the connections to be closed")
    assert httpx.post(f"{url}/generate", content=BODY).status_code == 200
    assert [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []
