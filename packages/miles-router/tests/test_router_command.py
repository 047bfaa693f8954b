"""`python -m miles_router` as a process of its own."""

import os
import subprocess
import sys

import httpx
import pytest

from miles_core import sample_codec
from miles_router.__main__ import main

USER = {"role": "user", "content": "hello"}


@pytest.fixture
def start():
    """Starts the command and returns its URL; ends the process with SIGTERM."""
    processes = []

    def run(*arguments, **environment) -> str:
        command = [sys.executable, "-m", "miles_router", "--port", "0", *arguments]
        environ = {**os.environ, **environment}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)
        processes.append(process)
        line = process.stdout.readline()
        assert line.startswith("listening on http://127.0.0.1:"), line
        return line.removeprefix("listening on ").strip()

    yield run
    for process in processes:
        process.terminate()
        process.stdout.close()
        assert process.wait(20) == 0


def test_router_and_sessions_in_one_process_behind_one_token(bench, start, Reply, model_dir):
    engine, worker = bench.engine(lambda prompt, body: Reply("hi"))
    url = start("--worker", worker, "--model-dir", str(model_dir), MILES_TOKEN="tok")
    assert httpx.post(f"{url}/sessions").status_code == 401
    assert httpx.get(f"{url}/list_workers").status_code == 401
    client = bench.client(url, headers={"Authorization": "Bearer tok"})
    session = client.post("/sessions", json={}).json()["session_id"]
    answer = client.post(f"/sessions/{session}/v1/chat/completions", json={"messages": [USER]})
    assert answer.json()["choices"][0]["message"]["content"] == "hi"
    body = client.post(f"/sessions/{session}/samples", json={"prompt_id": "p", "rollout_id": "r"}).content
    assert sample_codec.decode(body)[0].num_trainable == len(engine.ids_of(Reply("hi")))
    assert 'status="200"} ' in client.get("/metrics").text
    assert client.get("/list_workers").json()["workers"][0]["active"] == 0
    assert engine.headers[0].get("authorization") is None


def test_a_session_server_alone_in_front_of_an_engine(bench, start, Reply, model_dir):
    _, worker = bench.engine(lambda prompt, body: Reply("hi"))
    url = start("--model-dir", str(model_dir), "--engine-url", worker)
    client = bench.client(url)
    session = client.post("/sessions").json()["session_id"]
    answer = client.post(f"/sessions/{session}/v1/chat/completions", json={"messages": [USER]})
    assert answer.json()["choices"][0]["message"]["content"] == "hi"
    assert client.get("/list_workers").status_code == 404


def test_policy_and_middleware_are_chosen_by_name(bench, start, model_dir):
    (first, one), (second, two) = bench.engine(), bench.engine()
    own = ["--policy", "cache_aware,slack=2", "--middleware", f"prefix_tokens,model_dir={model_dir}"]
    url = start("--worker", f"{one}/v1/", "--worker", two, *own)
    client = bench.client(url)
    while any(worker["state"] != "healthy" for worker in client.get("/list_workers").json()["workers"]):
        pass
    for _ in range(4):
        assert client.post("/generate", json={"text": "hello there " * 20}).status_code == 200
    assert sorted([len(first.calls), len(second.calls)]) == [0, 4]
    calls = first.calls or second.calls
    assert all("text" not in call and call["input_ids"] for call in calls)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--engine-url", "http://x"], "--engine-url goes with --model-dir"),
        (["--worker", "nonsense"], "expected a base URL"),
        (["--policy", "leest_active"], "least_active"),
        (["--policy", "cache_aware,slack=-1"], "at least 0"),
        (["--policy", "nowhere:Policy"], "nowhere"),
        (["--middleware", "prefix_tokens,model_dir=/nowhere"], "tokenizer.json"),
        (["--model-dir", "/nowhere/at/all", "--engine-url", "http://x"], "/nowhere/at/all"),
    ],
)
def test_options_that_cannot_work_are_one_sentence_and_exit_2(arguments, says, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--port", "0", *arguments])
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_a_router_alone_loads_nothing_of_the_sessions():
    code = "import sys, miles_router.__main__; print([name for name in sys.modules if name.startswith({!r})])"
    code = code.format(("miles_router.sessions", "miles_tito"))
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout == "[]\n"
