"""Several session server processes behind one port: a session outlives the process that had it."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import httpx
import pytest

from miles_core import sample_codec
from miles_router.sessions.log.frames import session_hash

USER = {"role": "user", "content": "hello"}
BODY = {"prompt_id": "p", "rollout_id": "r"}


class Front:
    """`python -m miles_router` with session processes, and what its `/health` tells."""

    def __init__(self, engine_url, model_dir, log_dir, *, processes=3, token=None) -> None:
        self.token = token
        command = [sys.executable, "-m", "miles_router", "--model-dir", str(model_dir), "--engine-url", engine_url]
        command += ["--port", "0", "--log-dir", str(log_dir), "--processes", str(processes)]
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
        environment |= {"MILES_TOKEN": token} if token else {}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        line = self.process.stdout.readline().decode()
        assert line.startswith("listening on "), line
        self.url = line.split()[-1]

    def processes(self):
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return httpx.get(f"{self.url}/health", timeout=10, headers=headers).json()["processes"]

    def owner(self, session):
        """The process that has the session, or None while nobody has."""
        found = self.processes()
        shards = 64
        return next((p for p in found if session_hash(session) % shards in p["shards"]), None)

    def owner_name(self, session):
        owner = self.owner(session)
        return None if owner is None else owner["name"]

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(30)
        self.process.stdout.close()


@pytest.fixture
def front(bench, model_dir, tmp_path):
    """Starts a front on one log folder; ends what was started."""
    started = []

    def start(engine_url, **options) -> Front:
        started.append(Front(engine_url, model_dir, tmp_path / "log", **options))
        return started[-1]

    yield start
    for each in started:
        each.stop()


def create(client) -> str:
    return client.post("/sessions", json={}).raise_for_status().json()["session_id"]


def say(client, session, messages, **fields):
    path = f"/sessions/{session}/v1/chat/completions"
    answer = client.post(path, json={"messages": messages, **fields}, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]


def samples(client, session):
    answer = client.post(f"/sessions/{session}/samples", json=BODY, timeout=60)
    assert answer.status_code == 200, answer.text
    return sample_codec.decode(answer.content)


def test_a_conversation_goes_on_when_its_process_is_killed_and_again_when_it_is_back(bench, front, Reply, chat, until):
    numbers = iter(range(100))
    engine, url = bench.engine(lambda prompt, body: Reply(f"answer {next(numbers)}", delay_s=0.01))
    cluster = front(url)
    client = bench.client(cluster.url)
    sessions = [create(client) for _ in range(9)]
    owners = {session: cluster.owner(session)["name"] for session in sessions}
    assert len(set(owners.values())) > 1
    talks = {session: [USER] for session in sessions}
    for session in sessions:
        talks[session] += [say(client, session, talks[session]), USER]
    victim = cluster.owner(sessions[0])
    engine.script = lambda prompt, body: Reply(f"answer {next(numbers)}", delay_s=0.5)
    # One call is on its way while its process dies.
    answers = []
    other = bench.client(cluster.url)
    caller = threading.Thread(target=lambda: answers.append(say(other, sessions[0], talks[sessions[0]])))
    caller.start()
    until(lambda: engine.active == 1, "the call")
    os.kill(victim["pid"], signal.SIGKILL)
    caller.join(60)
    talks[sessions[0]] += [answers[0], USER]
    engine.script = lambda prompt, body: Reply(f"answer {next(numbers)}")
    for session in sessions:
        talks[session] += [say(client, session, talks[session]), USER]
    # Its successor is started, gets its shards back, and the conversations go on there.
    until(lambda: cluster.owner_name(sessions[0]) == victim["name"], "the shards to come home", timeout_s=60)
    back = cluster.owner(sessions[0])
    assert (back["starts"], back["pid"] != victim["pid"]) == (2, True)
    trained = Counter()
    for session in sessions:
        talks[session] += [say(client, session, talks[session])]
        (sample,) = samples(client, session)
        told = [m["content"] for m in talks[session] if m["role"] == "assistant"]
        text = chat.vocabulary.decode(sample.ids[sample.loss_mask].tolist())
        assert text == "".join(f"{part}<|im_end|>" for part in told)
        trained.update(told)
        assert sample.metadata["tito"]["hard"] == 0
    assert set(trained.values()) == {1}
    assert all(client.delete(f"/sessions/{session}").status_code == 204 for session in sessions)


async def converse(http, session, got, stop) -> None:
    """Talk until told to stop or cut off; every call has a deadline, and what was answered is remembered."""
    messages = [USER]
    while not stop.is_set():
        try:
            path = f"/sessions/{session}/v1/chat/completions"
            answer = await http.post(path, json={"messages": messages}, timeout=60)
        except httpx.TransportError:
            return
        if answer.status_code != 200:
            return
        message = answer.json()["choices"][0]["message"]
        got[session].append(message["content"])
        messages += [message, USER]


def check_samples(chat, found, got, *, more) -> None:
    """The samples of a session that one client talked in turn by turn: what it was told, in order, each once."""
    (sample,) = found
    parts = chat.vocabulary.decode(sample.ids[sample.loss_mask].tolist()).split("<|im_end|>")[:-1]
    assert parts[: len(got)] == got
    # What was recorded but not yet answered may be there as well, once.
    assert len(parts) <= len(got) + more
    assert sample.metadata["tito"]["hard"] == 0


@pytest.mark.parametrize("talkers", [16, pytest.param(500, marks=pytest.mark.slow)])
def test_no_answer_that_a_client_got_is_lost_when_processes_are_killed_under_load(
    bench, front, Reply, chat, until, talkers
):
    lock, numbers = threading.Lock(), iter(range(1_000_000))

    def script(prompt, body):
        with lock:
            return Reply(f"a{next(numbers)};", delay_s=0.02)

    engine, url = bench.engine(script)
    cluster = front(url, processes=3)
    client = bench.client(cluster.url)
    sessions = [create(client) for _ in range(talkers)]
    got = {session: [] for session in sessions}

    async def main() -> None:
        stop = asyncio.Event()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=50)
        async with httpx.AsyncClient(base_url=cluster.url, limits=limits) as http:
            talks = [asyncio.ensure_future(converse(http, session, got, stop)) for session in sessions]
            await reached(2 * talkers)
            victim = cluster.processes()[0]["pid"]
            os.kill(victim, signal.SIGKILL)
            await reached(4 * talkers)
            # One process is gone, and every conversation went on.
            assert not any(talk.done() for talk in talks)
            pids = [cluster.process.pid, *(process["pid"] for process in cluster.processes() if process["serving"])]
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            await asyncio.wait(talks, timeout=90)
            assert all(talk.done() for talk in talks)

    async def reached(count) -> None:
        told = f"{count} answers"
        await asyncio.to_thread(until, lambda: sum(map(len, got.values())) >= count, told, timeout_s=300)

    asyncio.run(main())
    cluster.process.wait(10)
    until(lambda: engine.active == 0, "the engine's calls to end", timeout_s=60)
    again = bench.client(front(url, processes=2).url)
    for session in sessions:
        check_samples(chat, samples(again, session), got[session], more=1)
        assert again.get(f"/sessions/{session}").json()["in_flight"] == 0


def test_a_stream_whose_process_dies_breaks_off_and_its_retry_gets_one_answer(bench, front, Reply, chat, until):
    engine, url = bench.engine(lambda prompt, body: Reply("abcdefghijklmnop", step_s=0.1))
    cluster = front(url, processes=2, token="s3cret")
    client = bench.client(cluster.url, headers={"Authorization": "Bearer s3cret"})
    assert httpx.post(f"{cluster.url}/sessions").status_code == 401
    session = create(client)
    path = f"/sessions/{session}/v1/chat/completions"

    def read_and_kill() -> None:
        with client.stream("POST", path, json={"messages": [USER], "stream": True}) as answer:
            for number, _ in enumerate(answer.iter_lines()):
                if number == 3:
                    os.kill(cluster.owner(session)["pid"], signal.SIGKILL)

    with pytest.raises(httpx.RemoteProtocolError):
        read_and_kill()
    engine.script = lambda prompt, body: Reply("abcdefghijklmnop")
    assert say(client, session, [USER])["content"] == "abcdefghijklmnop"
    (sample,) = samples(client, session)
    assert chat.vocabulary.decode(sample.ids[sample.loss_mask].tolist()) == "abcdefghijklmnop<|im_end|>"
    until(lambda: engine.active == 0, "the engine's calls to end")


def test_the_processes_end_with_the_front_even_when_that_is_killed(bench, front, until):
    _, url = bench.engine()
    cluster = front(url, processes=2)
    client = bench.client(cluster.url)
    assert client.get("/sessions/none").status_code == 404
    assert client.get("/nothing").status_code == 404
    assert client.post("/cluster/release", json={"shards": [0]}).status_code == 404
    pids = [process["pid"] for process in cluster.processes()]
    assert sum(len(process["shards"]) for process in cluster.processes()) == 64
    cluster.process.kill()
    cluster.process.wait(10)

    def gone(pid) -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"

    until(lambda: all(gone(pid) for pid in pids), "the processes to end", timeout_s=20)
