"""The engine's surface over real HTTP."""

import asyncio
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from miles_core.engine_client import EngineClient, Generation
from miles_core.errors import EngineError


@pytest.fixture
def engine():
    """Answers each path with `answers[path]` (status, JSON value); keeps (path, body, headers)."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def answer(self):
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            server.seen.append((self.path, json.loads(body) if body else None, dict(self.headers)))
            time.sleep(server.delay_s)
            status, value = server.answers.get(self.path, (200, {}))
            data = value if isinstance(value, bytes) else json.dumps(value).encode()
            try:
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except ConnectionError:
                self.close_connection = True

        do_GET = do_POST = answer

        def log_message(self, *args):
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads, server.block_on_close = True, False
    server.seen, server.answers, server.delay_s = [], {}, 0.0
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def call(engine, use, **options):
    async def main():
        async with EngineClient(engine.url, **options) as client:
            return await use(client)

    return asyncio.run(main())


def answer(ids=(5, 6), **meta):
    given = {
        "finish_reason": {"type": "stop", "matched": 6},
        "weight_version": "3",
        "output_token_logprobs": [[-0.5, i, None] for i in ids],
        **meta,
    }
    return {"text": "hi", "output_ids": list(ids), "meta_info": given}


def test_a_generation_is_asked_for_with_ids_and_logprobs(engine):
    engine.answers["/generate"] = (200, answer())
    found = call(engine, lambda c: c.generate([1, 2], {"temperature": 1.0}, rid="r", routing_key="s"), token="secret")
    assert (found.ids, found.logprobs, found.weight_versions) == ((5, 6), (-0.5, -0.5), (3, 3))
    assert (found.finish, found.text) == ("stop", "hi")
    ((path, body, headers),) = engine.seen
    assert (path, headers["Authorization"], headers["X-SMG-Routing-Key"]) == ("/generate", "Bearer secret", "s")
    assert body == {
        "input_ids": [1, 2], "sampling_params": {"temperature": 1.0}, "return_logprob": True, "rid": "r",
    }  # fmt: skip


def test_runs_of_weight_versions_are_spread_over_the_ids():
    found = Generation.of(answer((5, 6, 7), token_weight_versions=[[3, 1], [4, 2]]))
    assert found.weight_versions == (3, 4, 4)


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (answer(output_token_logprobs=[[-0.5, 5, None]]), "a log-probability for each of 2 sampled ids, found 1"),
        (answer(output_token_logprobs=[[-0.5, 5, None], [-0.5, 9, None]]), "for each of 2 sampled ids"),
        (answer(token_weight_versions=[[3, 1]]), "weight versions for 2 sampled ids, found 1"),
        (answer(weight_version="default"), "expected output_ids and meta_info"),
        ({"text": "hi"}, "expected output_ids and meta_info"),
        ({"output_ids": [1], "meta_info": {"finish_reason": None}}, "expected output_ids and meta_info"),
    ],
)
def test_an_answer_whose_parts_do_not_fit_is_refused(engine, broken, told):
    engine.answers["/generate"] = (200, broken)
    with pytest.raises(EngineError, match=told):
        call(engine, lambda c: c.generate([1], {}))


CALLS = [
    (lambda c: c.health(), "/health", None),
    (lambda c: c.health_generate(), "/health_generate", None),
    (lambda c: c.model_info(), "/model_info", None),
    (lambda c: c.server_info(), "/server_info", None),
    (lambda c: c.pause("in_place"), "/pause_generation", {"mode": "in_place"}),
    (lambda c: c.continue_generation(), "/continue_generation", {}),
    (lambda c: c.abort("r"), "/abort_request", {"rid": "r"}),
    (lambda c: c.abort(), "/abort_request", {"abort_all": True}),
    (lambda c: c.flush_cache(), "/flush_cache", {}),
    (lambda c: c.begin_weight_update(), "/begin_weight_update", {}),
    (lambda c: c.commit_weight_update(7), "/end_weight_update", {"weight_version": "7"}),
    (lambda c: c.abort_weight_update(), "/end_weight_update", {"abort": True}),
    (lambda c: c.update_weight_version(7), "/update_weight_version", {"new_version": "7"}),
]


@pytest.mark.parametrize(("use", "path", "body"), CALLS, ids=[f"{n}{path}" for n, (_, path, _) in enumerate(CALLS)])
def test_each_call_has_the_path_and_body_of_the_contract_and_a_typed_failure(engine, use, path, body):
    call(engine, use)
    assert engine.seen[0][:2] == (path, body)
    engine.answers[path] = (400, {"error": {"message": "not now"}})
    with pytest.raises(EngineError, match=f"{path}: expected 200, found 400: not now") as caught:
        call(engine, use)
    assert caught.value.status == 400


def test_staged_weights_answer_with_their_digests(engine):
    path = "/update_weights_from_shared_memory"
    engine.answers[path] = (200, {"success": True, "digests": {"w": "ab"}})
    assert call(engine, lambda c: c.update_weights_from_shared_memory({"version": 7})) == {"w": "ab"}
    engine.answers[path] = (200, {"success": True})
    with pytest.raises(EngineError, match="expected success and digests"):
        call(engine, lambda c: c.update_weights_from_shared_memory({"version": 7}))


def test_weights_from_disk_must_say_success(engine):
    path = "/update_weights_from_disk"
    engine.answers[path] = (200, {"success": True})
    call(engine, lambda c: c.update_weights_from_disk("/m", weight_version=7))
    assert engine.seen[0][1] == {"model_path": "/m", "weight_version": "7"}
    engine.answers[path] = (200, {"success": False, "message": "no such folder"})
    with pytest.raises(EngineError, match="expected success, found no such folder"):
        call(engine, lambda c: c.update_weights_from_disk("/m", weight_version=7))


def test_an_answer_that_is_not_json_is_told(engine):
    engine.answers["/model_info"] = (200, b"<html>")
    with pytest.raises(EngineError, match="expected a JSON object, found '<html>'"):
        call(engine, lambda c: c.model_info())


def test_no_engine_and_no_answer_in_time_are_told(engine):
    with pytest.raises(EngineError, match=r"http://127\.0\.0\.1:1/health: expected an engine, found ") as caught:
        asyncio.run(EngineClient("http://127.0.0.1:1").health())
    assert caught.value.status is None
    engine.delay_s = 5.0
    with pytest.raises(EngineError, match=r"/health: expected an answer within 0\.2 s, found none"):
        call(engine, lambda c: c.health(timeout_s=0.2))
