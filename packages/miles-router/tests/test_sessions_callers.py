"""The callers' side of a session server of its own: the router's parser, limits and deadlines. Raw sockets."""

import contextlib
import json
import socket

import pytest

from miles_router.config import RouterConfig

OFFER = b"connection: upgrade\r\nupgrade: h2c\r\n"


def exchange(url, sent):
    host, port = url.removeprefix("http://").split(":")
    data = b""
    with socket.create_connection((host, int(port)), timeout=10) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(sent)
        while piece := connection.recv(65536):
            data += piece
    return data


@pytest.fixture
def served(bench):
    _, engine = bench.engine()
    return bench.sessions(engine)


def test_the_body_of_a_request_that_offers_an_upgrade_counts(served):
    """An unknown field of the spec is refused; without its body the call would be a session without a spec."""
    app, url = served
    app.callers.config = RouterConfig(keep_alive_s=0.3)
    answer = exchange(url, b"POST /sessions HTTP/1.1\r\nhost: x\r\n" + OFFER + b'content-length: 11\r\n\r\n{"zzzz": 7}')
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"zzzz" in answer


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nhost: x\r\nx-pad: " + b"y" * 70_000 + b"\r\n\r\n", 431),
    ],
)
def test_what_is_no_request_is_told_in_the_shape_of_every_error(served, sent, status):
    head, _, body = exchange(served[1], sent).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert set(json.loads(body)["error"]) == {"message", "type", "code"}


@pytest.mark.parametrize(
    ("sent", "begins"),
    [
        (b"", b""),
        (b"POST /sess", b"HTTP/1.1 408"),
        (b"POST /sessions HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{", b""),
    ],
)
def test_a_caller_that_dawdles_is_let_go(served, sent, begins):
    app, url = served
    app.callers.config = RouterConfig(head_timeout_s=0.3, body_timeout_s=0.3, keep_alive_s=0.3)
    assert exchange(url, sent).startswith(begins)
    assert not app.callers.connections


@pytest.mark.parametrize(
    ("given", "status"),
    [("Bearer s3cret", 200), ("bearer s3cret", 200), ("Basic s3cret", 401), ("Bearer S3cret", 401), ("s3cret", 401)],
)
def test_the_scheme_of_a_token_has_no_case_but_the_token_does(bench, given, status):
    _, engine = bench.engine()
    _, url = bench.sessions(engine, token="s3cret")
    assert bench.client(url).post("/sessions", json={}, headers={"authorization": given}).status_code == status
