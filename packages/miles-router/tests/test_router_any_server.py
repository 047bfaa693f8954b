"""In front of servers that know nothing of SGLang: how they are probed, and what a base URL may look like."""

import json
import os
import shutil
import ssl
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


class OpenAIServer:
    """Answers `/v1/models` and `/v1/chat/completions` under `prefix`, and 404 to all else."""

    def __init__(self, prefix: str = "", *, models: int = 200, health: int = 404) -> None:
        self.prefix = prefix
        self.statuses = {"/v1/models": models, "/v1/chat/completions": 200, "/health": health}
        self.seen: list[str] = []

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        while (await receive()).get("more_body"):
            pass
        self.seen.append(scope["path"])
        status = self.statuses.get(scope["path"].removeprefix(self.prefix), 404)
        if not scope["path"].startswith(self.prefix):
            status = 404
        body = json.dumps({"path": scope["path"]}).encode()
        fields = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": fields})
        await send({"type": "http.response.body", "body": body})


@pytest.mark.parametrize(
    ("prefix", "added"), [("", ""), ("", "/v1"), ("", "/v1/"), ("/proxy/openai", "/proxy/openai/v1")]
)
def test_an_openai_server_without_health_is_found_alive_and_gets_the_calls(bench, prefix, added):
    server = OpenAIServer(prefix)
    url = bench.serve(server)
    app, router = bench.router(url + added)
    answer = httpx.post(f"{router}/v1/chat/completions", json=CHAT)
    assert (answer.status_code, answer.json()["path"]) == (200, f"{prefix}/v1/chat/completions")
    assert httpx.get(f"{router}/v1/models").json()["path"] == f"{prefix}/v1/models"
    assert [worker.url for worker in app.pool.workers] == [url + prefix]
    assert app.pool.workers[0].weight_version is None
    # It is removed under any of its names.
    assert httpx.post(f"{router}/remove_worker", json={"url": url + prefix + "/v1/"}).status_code == 200


def test_it_is_asked_for_health_once_and_then_for_its_models_only(bench, until):
    server = OpenAIServer()
    bench.router(bench.serve(server))
    until(lambda: server.seen.count("/v1/models") > 3, "several probes")
    assert server.seen.count("/health") == 1
    assert "/model_info" not in server.seen


@pytest.mark.parametrize("status", [401, 403, 404, 405, 429])
def test_any_answer_below_500_is_a_sign_of_life(bench, status):
    bench.router(bench.serve(OpenAIServer(models=status)))


@pytest.mark.parametrize(("health", "models"), [(404, 500), (404, 503), (503, 200), (500, 200)])
def test_one_that_says_it_is_ill_gets_nothing(bench, until, health, models):
    app, url = bench.router(queue_timeout_s=0.2)
    worker = bench.serve(OpenAIServer(health=health, models=models))
    found = httpx.post(f"{url}/add_worker", json={"url": worker}).json()
    assert found["state"] == "probing"
    assert str(max(health, models) if models >= 500 else health) in found["reason"]
    assert httpx.post(f"{url}/v1/chat/completions", json=CHAT).status_code == 503
    assert app.pool.workers[0].picks == 0


def test_without_a_weight_version_a_server_gets_calls_only_while_none_is_asked_for(bench):
    app, url = bench.router(bench.serve(OpenAIServer()), queue_timeout_s=0.2)
    assert httpx.post(f"{url}/v1/chat/completions", json=CHAT).status_code == 200
    httpx.post(f"{url}/weight_version", json={"version": 1})
    answer = httpx.post(f"{url}/v1/chat/completions", json=CHAT)
    assert answer.status_code == 503
    assert "weight version None" in answer.json()["error"]["message"]
    assert app.pool.workers[0].active == 0


def test_a_worker_behind_tls_is_reached_by_its_name(bench, tmp_path):
    """The router as a process that trusts one certificate; the server's name is checked against it."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    make += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(make, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    names = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            self.rfile.read(int(self.headers.get("content-length", 0)))
            names.append(self.headers["host"])
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        do_GET = do_POST

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        host = f"localhost:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [sys.executable, "-m", "miles_router", "--port", "0", "--worker", f"https://{host}/v1"]
        environ = {**os.environ, "SSL_CERT_FILE": str(certificate)}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as process:
            url = process.stdout.readline().removeprefix("listening on ").strip()
            found = [httpx.post(f"{url}/v1/chat/completions", json=CHAT, timeout=20) for _ in range(2)]
            process.terminate()
        server.shutdown()
    assert [(answer.status_code, answer.json()) for answer in found] == [(200, {})] * 2
    assert set(names) == {host}
