"""Every way an answer can be framed, and connections that are kept."""

import socket
import threading

import httpx
import pytest


@pytest.mark.parametrize(
    ("raw", "status", "body"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", 200, b"hello"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", 200, b"hello"),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nuntil the end", 200, b"until the end"),
        (b"HTTP/1.0 200 OK\r\n\r\nold", 200, b"old"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\nok", 201, b"ok"),
        (b"HTTP/1.1 418 Odd\r\nContent-Length: 0\r\n\r\n", 418, b""),
    ],
)
def test_an_answer_arrives_whole_however_it_is_framed(bench, raw_server, raw, status, body):
    app, url = bench.router(health={"interval_s": 30.0})
    app.pool.probe_succeeded(app.pool.add(raw_server(raw)), 0)
    client = bench.client(url)
    for _ in range(2):
        answer = client.post("/generate", json={})
        assert (answer.status_code, answer.content) == (status, body)
    assert app.pool.workers[0].active == 0


def test_a_chunked_answer_that_breaks_off_is_not_passed_off_as_whole(bench, raw_server):
    app, url = bench.router(health={"interval_s": 30.0})
    cut = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhe"
    app.pool.probe_succeeded(app.pool.add(raw_server(cut)), 0)
    with pytest.raises(httpx.RemoteProtocolError):
        bench.client(url).post("/generate", json={})
    assert (app.pool.workers[0].failures, app.pool.workers[0].active) == (1, 0)


def test_a_chunked_answer_that_is_none_is_502(bench, raw_server):
    app, url = bench.router(health={"interval_s": 30.0})
    garbage = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nnot a size\r\n"
    app.pool.probe_succeeded(app.pool.add(raw_server(garbage)), 0)
    assert bench.client(url).post("/generate", json={}).status_code == 502
    assert (app.pool.workers[0].failures, app.pool.workers[0].active) == (1, 0)


def test_an_answer_that_comes_twice_is_given_once_and_never_to_the_next_call(bench):
    """The second one comes in one piece with the first; the connection is not used again."""
    numbers = iter(range(100))
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                while connection.recv(65536):
                    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n%02d" % next(numbers) * 2)

    threading.Thread(target=serve, daemon=True).start()
    try:
        app, url = bench.router(health={"interval_s": 30.0})
        app.pool.probe_succeeded(app.pool.add(f"http://127.0.0.1:{listener.getsockname()[1]}"), 0)
        client = bench.client(url)
        answers = [client.post("/x", json={}) for _ in range(5)]
        assert [answer.content for answer in answers] == [b"00", b"01", b"02", b"03", b"04"]
        assert all(answer.headers.get_list("content-length") == ["2"] for answer in answers)
        assert (app.pool.workers[0].failures, app.pool.workers[0].active) == (0, 0)
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def test_a_head_without_end_is_refused(bench, raw_server):
    app, url = bench.router(health={"interval_s": 30.0})
    endless = b"HTTP/1.1 200 OK\r\n" + b"x-pad: " + b"y" * 100_000
    app.pool.probe_succeeded(app.pool.add(raw_server(endless)), 0)
    assert bench.client(url).post("/generate", json={}).status_code == 502


def test_head_calls_have_no_body_and_the_length_of_none(bench):
    _, worker = bench.engine()
    _, url = bench.router(worker)
    client = bench.client(url)
    for _ in range(2):
        answer = client.head("/echo")
        assert (answer.status_code, answer.content) == (200, b"")
    assert client.get("/echo").json()["method"] == "GET"


def test_one_connection_carries_many_calls_and_a_closed_one_is_replaced(bench):
    accepted = []
    listener = socket.create_server(("127.0.0.1", 0))
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            accepted.append(connection)
            with connection:
                # Three calls, then the connection closes without a word.
                for _ in range(3):
                    if not connection.recv(65536):
                        break
                    connection.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        app, url = bench.router(health={"interval_s": 30.0})
        worker = f"http://127.0.0.1:{listener.getsockname()[1]}"
        app.pool.probe_succeeded(app.pool.add(worker), 0)
        client = bench.client(url)
        assert [client.post("/x", json={}).status_code for _ in range(9)] == [200] * 9
        assert 3 <= len(accepted) <= 4
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
