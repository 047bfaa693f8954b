"""What a caller's bytes mean: offers of other protocols, trailers, limits of heads, one answer to one request."""

import contextlib
import json
import socket

import httpx
import pytest

from miles_router.request_parser import HEAD_BYTES, RequestError, RequestParser

OFFER = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"


class Sink:
    """Keeps requests as [method, target, fields, body], None for the body until it is whole."""

    def __init__(self):
        self.requests = []
        self.body = b""

    def head_came(self, request):
        self.requests.append([request.method, request.target, dict(request.headers), None])
        self.body = b""

    def body_came(self, data):
        self.body += data

    def request_ends(self):
        self.requests[-1][3] = self.body


def parse(sent, step=None):
    sink = Sink()
    parser = RequestParser(sink)
    step = step or len(sent)
    going = [parser.feed(sent[at : at + step]) for at in range(0, len(sent), step)]
    return sink, parser, going[-1]


def exchange(url, sent):
    host, port = url.removeprefix("http://").split(":")
    data = b""
    with socket.create_connection((host, int(port)), timeout=10) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(sent)
        while piece := connection.recv(65536):
            data += piece
    return data


@pytest.mark.parametrize("step", [None, 1, 7])
def test_an_offer_is_ignored_and_the_body_read_and_so_is_what_follows(step):
    one = b"POST /a HTTP/1.1\r\nhost: x\r\n" + OFFER + b"content-length: 3\r\n\r\nabc"
    two = b"POST /b?q HTTP/1.1\r\nhost: x\r\n" + OFFER + CHUNKED + b"\r\n2\r\nde\r\n0\r\n\r\n"
    three = b"GET /c HTTP/1.1\r\nhost: x\r\n" + OFFER + b"\r\n"
    sink, parser, going = parse(one + two + three + one, step)
    assert going
    assert [(method, target, body) for method, target, _, body in sink.requests] == [
        (b"POST", b"/a", b"abc"),
        (b"POST", b"/b?q", b"de"),
        (b"GET", b"/c", b""),
        (b"POST", b"/a", b"abc"),
    ]
    assert all(b"upgrade" not in fields for _, _, fields, _ in sink.requests)
    assert parser.pending == 0


def test_after_connect_nothing_is_read():
    sink, _, going = parse(b"CONNECT x:1 HTTP/1.1\r\nhost: x:1\r\n\r\nGET / HTTP/1.1\r\nhost: x\r\n\r\n")
    assert not going
    assert [method for method, *_ in sink.requests] == [b"CONNECT"]


def test_trailers_are_no_fields_of_the_head():
    sent = b"POST /a HTTP/1.1\r\nhost: x\r\n" + CHUNKED + b"\r\n3\r\nabc\r\n0\r\nauthorization: Bearer t\r\n\r\n"
    sink, _, _ = parse(sent)
    assert sink.requests[0][2:] == [{b"host": b"x", b"transfer-encoding": b"chunked"}, b"abc"]


@pytest.mark.parametrize(
    "endless",
    [b"x-trail: " + b"y" * 89 + b"\r\n", b"z" * 100, b"x" * 5 + b": y\r\n"],
    ids=["fields", "one field", "short fields"],
)
@pytest.mark.parametrize("step", [100, 250_000])
def test_trailers_have_the_limit_of_a_head(endless, step):
    sink = Sink()
    parser = RequestParser(sink)
    parser.feed(b"POST /a HTTP/1.1\r\nhost: x\r\n" + CHUNKED + b"\r\n3\r\nabc\r\n0\r\n")
    sent = 0
    with pytest.raises(RequestError) as caught:  # noqa: PT012 - how much it took is asked below
        while sent < 10 * HEAD_BYTES:
            parser.feed((endless * (step // len(endless) + 1))[:step])
            sent += step
    assert caught.value.status == 431
    assert sent <= 2 * HEAD_BYTES


def test_an_endless_chunk_extension_is_ended():
    parser = RequestParser(Sink())
    parser.feed(b"POST /a HTTP/1.1\r\nhost: x\r\n" + CHUNKED + b"\r\n3;")
    with pytest.raises(RequestError):  # noqa: PT012
        for _ in range(2 * HEAD_BYTES // 100):
            parser.feed(b"e" * 100)


def test_many_small_chunks_are_no_overhead():
    body = b"1\r\na\r\n" * 50_000
    sink, _, _ = parse(b"POST /a HTTP/1.1\r\nhost: x\r\n" + CHUNKED + b"\r\n" + body + b"0\r\n\r\n", 1000)
    assert len(sink.requests[0][3]) == 50_000


@pytest.mark.parametrize("spare", [0, 1])
def test_the_limit_of_a_head_is_exact_in_one_read(spare):
    """64 KiB of target and fields, each field with its colon, its blank and its line end."""
    pad = HEAD_BYTES - len(b"/a") - len(b"host: x\r\n") - len(b"x-pad: \r\n") + spare
    sent = b"GET /a HTTP/1.1\r\nhost: x\r\nx-pad: " + b"y" * pad + b"\r\n\r\n"
    if not spare:
        assert len(parse(sent)[0].requests) == 1
    else:
        with pytest.raises(RequestError) as caught:
            parse(sent)
        assert caught.value.status == 431


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /echo HTTP/1.1\r\n\r\n",
        b"GET /echo HTTP/1.1\r\nhost: x\r\nHost: y\r\n\r\n",
    ],
)
def test_http_1_1_has_one_host(bench, sent):
    _, url = bench.router()
    assert exchange(url, sent).startswith(b"HTTP/1.1 400 ")


def test_what_an_offer_came_with_reaches_the_worker(bench):
    """Clients that would speak HTTP/2 send their first POST so."""
    _, worker = bench.engine()
    _, url = bench.router(worker)
    head = b"POST /echo HTTP/1.1\r\nhost: x\r\n" + OFFER.replace(b"upgrade,", b"close, upgrade,")
    answer = exchange(url, head + b"content-length: 3\r\n\r\nabc")
    seen = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert seen["size"] == 3
    assert not {"upgrade", "http2-settings"} & {name for name, _ in seen["headers"]}


def test_trailers_do_not_reach_the_worker(bench):
    _, worker = bench.engine()
    _, url = bench.router(worker)
    head = b"POST /echo HTTP/1.1\r\nhost: x\r\nconnection: close\r\n" + CHUNKED
    answer = exchange(url, head + b"\r\n3\r\nabc\r\n0\r\nx-smg-routing-key: k\r\n\r\n")
    seen = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert seen["size"] == 3
    assert "x-smg-routing-key" not in dict(seen["headers"])


@pytest.mark.parametrize("coding", [b"xchunked", b"identity", b'"chunked"'])
def test_one_request_gets_one_answer(bench, coding):
    _, url = bench.router()
    answer = exchange(url, b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: " + coding + b"\r\n\r\nabc")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.startswith((b"HTTP/1.1 501 ", b"HTTP/1.1 400 "))


def test_an_absolute_target_without_a_path_has_the_root_for_one(bench):
    _, worker = bench.engine()
    _, url = bench.router(worker)
    answer = exchange(url, b"GET http://other?y=/echo HTTP/1.1\r\nhost: other\r\nconnection: close\r\n\r\n")
    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {"error": "/"}


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 999 x\r\ncontent-length: 0\r\n\r\n",
    ],
    ids=["coding", "status"],
)
def test_an_answer_that_cannot_be_passed_on_is_502(bench, raw_server, answer):
    app, url = bench.router()
    worker = app.pool.add(raw_server(answer))
    app.pool.probe_succeeded(worker, None)
    assert bench.client(url).post("/generate", json={}).status_code == 502


def test_trailers_of_an_answer_are_no_fields_of_its_head_and_have_a_limit(bench, raw_server):
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n"
    app, url = bench.router()
    worker = app.pool.add(raw_server(head + b"set-cookie: a\r\n\r\n"))
    app.pool.probe_succeeded(worker, None)
    answer = bench.client(url).post("/generate", json={})
    assert (answer.status_code, answer.content) == (200, b"abc")
    assert "set-cookie" not in answer.headers
    app.pool.remove(worker.url)
    worker = app.pool.add(raw_server(head + b"x: " + b"y" * (1 << 20)))
    app.pool.probe_succeeded(worker, None)
    with pytest.raises(httpx.RemoteProtocolError):
        bench.client(url).post("/generate", json={})
