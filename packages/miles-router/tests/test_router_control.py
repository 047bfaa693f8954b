"""Control calls with what no well-meaning caller sends: 400 in the shape of every error, and nothing has changed."""

import json

import pytest

from miles_core.errors import ConfigError
from miles_router.urls import worker_url
from miles_router.versions import weight_version

DEEP = b"[" * 100_000
NOT_UTF8 = b'{"url": "\xff", "version": 1}'
CALLS = ("/add_worker", "/remove_worker", "/quarantine", "/weight_version")


@pytest.mark.parametrize(
    "url",
    [
        *[
            "http://a\ud800b",
            "http://[::1",
            "http://[zz]",
            "http://[::1]x",
            "http://a b",
            "http://\u0000",
            "http://....",
        ],
        *["http://a\nb", "http://bücher", "http://" + "a" * 5000, "http://" + "a" * 64, "http://-a", "http://a-"],
        *["http://", "http:///x", "ftp://a", "http://a:99999", "http://a:x", "http://a?b", "http://a#b", "", "a:1"],
        *["http://user:secret@a", "http://a/\u00e4", "http://a\\b"],
    ],
)
def test_what_is_no_url_of_a_worker_is_refused_everywhere_and_nothing_changes(bench, url):
    with pytest.raises(ConfigError):
        worker_url(url)
    app, router = bench.router()
    client = bench.client(router)
    for path in CALLS[:3]:
        answer = client.post(path, content=json.dumps({"url": url}))
        assert answer.status_code == 400, path
        assert answer.json()["error"]["type"] == "invalid_request_error"
    assert app.pool.workers == ()
    assert client.get("/list_workers").json() == {"workers": []}
    assert client.get("/metrics").status_code == 200


@pytest.mark.parametrize(
    ("url", "spelled"),
    [
        ("http://127.0.0.1:30000/", "http://127.0.0.1:30000"),
        (" https://Models.example.org/v1 ", "https://models.example.org"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("http://engine_0.svc-a:1/sub/v1/", "http://engine_0.svc-a:1/sub"),
        ("http://host.", "http://host."),
    ],
)
def test_what_is_one_has_one_spelling(url, spelled):
    assert worker_url(url) == spelled


@pytest.mark.parametrize("path", CALLS)
@pytest.mark.parametrize("body", [DEEP, NOT_UTF8, b"", b"[]", b"null", b'{"url": 1}', b'{"url"'])
def test_a_body_that_is_no_call_is_400(bench, path, body):
    app, router = bench.router()
    answer = bench.client(router).post(path, content=body)
    assert answer.status_code == 400
    assert set(answer.json()["error"]) == {"message", "type", "code"}
    assert (app.pool.workers, app.pool.version) == ((), None)


@pytest.mark.parametrize("version", [True, -1, 10**26, 1 << 63, 1.5, "x", "-1", None, [1], "²"])
def test_what_is_no_weight_version_is_400(bench, version):
    app, router = bench.router()
    answer = bench.client(router).post("/weight_version", json={"version": version})
    assert answer.status_code == 400
    assert "error" in answer.json()
    assert app.pool.version is None


def test_the_largest_weight_version_is_taken(bench):
    app, router = bench.router()
    assert bench.client(router).post("/weight_version", json={"version": (1 << 63) - 1}).json()["workers"] == []
    assert app.pool.version == (1 << 63) - 1


@pytest.mark.parametrize("reason", ["\ud800", "x" * 5000, 7, ["a"]])
def test_a_reason_that_cannot_be_shown_is_400(bench, reason):
    _, worker = bench.engine()
    app, router = bench.router(worker)
    client = bench.client(router)
    content = json.dumps({"url": worker, "reason": reason})
    assert client.post("/quarantine", content=content).status_code == 400
    assert app.pool.workers[0].state == "healthy"
    assert client.get("/list_workers").json()["workers"][0]["reason"] == ""


def test_what_a_worker_says_can_always_be_shown(bench):
    app, router = bench.router()
    client = bench.client(router)
    app.pool.add("http://127.0.0.1:9").reason = "found \udcff"
    assert client.get("/list_workers").json()["workers"][0]["reason"] == "found ?"


def test_a_control_body_has_a_limit_however_it_is_framed(bench):
    _, router = bench.router()
    answer = bench.client(router).post("/add_worker", content=iter([b" " * 65536] * 32))
    assert answer.status_code == 413
    assert answer.json()["error"]["type"] == "request_too_large"


def test_another_method_is_told_in_the_same_shape(bench):
    _, router = bench.router()
    answer = bench.client(router).get("/add_worker")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
    assert "error" in answer.json()


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        *[("default", 0), ("7", 7), (7, 7), ("-3", -3), ((1 << 63) - 1, (1 << 63) - 1), (-(1 << 63), -(1 << 63))],
        *[(1 << 63, None), ("9" * 30, None), ("9" * 5000, None), ("--3", None), (True, None), (1.0, None), ("", None)],
    ],
)
def test_weight_versions_are_numbers_that_64_bits_hold(said, meant):
    assert weight_version(said) == meant
