"""A server that starts again on its log: the same turns, the same samples bit for bit, the same answers to retries."""

import json
import threading
from pathlib import Path

import httpx
import pytest

from miles_core import sample_codec
from miles_core.errors import SessionError
from miles_core.sample import Sample
from miles_router.sessions.log.config import LogConfig
from miles_router.sessions.log.frames import Frame, scan
from miles_router.sessions.log.records import Kind, decode

USER = {"role": "user", "content": "hello"}
MORE = {"role": "user", "content": "more"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALL = 'I look.\n<tool_call>\n{"name": "look", "arguments": {"at": "Z\u00fcrich"}}\n</tool_call>'
BODY = {"prompt_id": "p", "rollout_id": "r"}


@pytest.fixture
def servers(bench, tmp_path):
    """Starts session servers on one log folder, one after the other."""

    class Servers:
        folder = tmp_path / "log"
        app = None

        def start(self, engine_url, **options):
            self.stop()
            fields = {"folder": self.folder, "fsync": "none", **options.pop("log", {})}
            self.app, url = bench.sessions(engine_url, log=LogConfig(**fields), **options)
            self.server = bench._servers[-1]
            return bench.client(url)

        def stop(self):
            if self.app is not None:
                self.server.stop()
                bench._servers.remove(self.server)

    return Servers()


def create(client, **spec) -> str:
    return client.post("/sessions", json=spec).json()["session_id"]


def say(client, session, messages, *, headers=None, **fields):
    path = f"/sessions/{session}/v1/chat/completions"
    answer = client.post(path, json={"messages": messages, **fields}, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]


def samples(client, session) -> list[Sample]:
    answer = client.post(f"/sessions/{session}/samples", json=BODY)
    assert answer.status_code == 200, answer.text
    return sample_codec.decode(answer.content)


def records(folder: Path, number=0) -> list:
    paths = sorted((folder / f"shard-{number:03d}").glob("*.log"))
    return [decode(piece.payload) for path in paths for piece in scan(path.read_bytes()) if isinstance(piece, Frame)]


def numbered(Reply):
    """Answers that differ, whatever server asks."""
    texts = iter([f"answer {n}" for n in range(100)])
    return lambda prompt, body: Reply(next(texts))


def test_every_kind_of_turn_comes_back_as_it_was(bench, servers, Reply):
    meta = {"token_weight_versions": [[3, 1], [4, 1]], "spec_verify_ct": 5}
    replies = iter(
        [
            Reply(CALL), Reply("fine", meta={"spec_verify_ct": 2}), Reply("other"), Reply(status=503),
            Reply("half", finish="length"), Reply(ids=[10, 11], finish="length", meta=meta), Reply("after"),
            Reply("again"), Reply("new branch"),
        ]
    )  # fmt: skip
    _, url = bench.engine(lambda prompt, body: next(replies))
    client = servers.start(url)
    session = create(client, seed=3, tools=[TOOL], metadata={"run": "a"}, max_seq_len=700)
    first = say(client, session, [USER])
    result = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "fine weather"}
    # A client that writes the arguments anew, and puts its text into parts.
    spelled = json.loads(json.dumps(first))
    spelled["tool_calls"][0]["function"]["arguments"] = '{ "at":  "Z\u00fcrich" }'
    parts = {"role": "user", "content": [{"type": "text", "text": "hello"}]}
    say(client, session, [parts, spelled, result])
    second = say(client, session, [USER, spelled, result, MORE], stream=False)
    path = f"/sessions/{session}/v1/chat/completions"
    assert client.post(path, json={"messages": [MORE]}).status_code == 503
    half = say(client, session, [MORE])
    say(client, session, [USER, first, result, second, USER], tools=[])
    say(client, session, [MORE, half, USER])  # after a truncated turn: a trajectory of its own
    say(client, session, [MORE])
    say(client, session, [MORE, {**half, "content": "I never said that"}, USER])
    say(client, session, [USER, first, {**result, "content": "x" * 700}])  # has no room
    before = client.get(f"/sessions/{session}").json(), samples(client, session)
    client = servers.start(url)
    assert (client.get(f"/sessions/{session}").json(), samples(client, session)) == before
    assert before[0]["failed_turns"] == 1
    assert before[0]["log_damaged"] is None
    assert {turn["extends"] for turn in before[0]["turns"]} == {True, False}


def test_a_conversation_goes_on_with_the_tokens_and_seeds_it_would_have_had(bench, servers, Reply, chat, tmp_path):
    drifting = [chat.vocabulary.encode(c)[0][0] for c in "hello"]  # not what "hello" encodes to
    stop = chat.vocabulary.id_of("<|im_end|>")

    def play(restart):
        replies = iter([Reply(ids=[*drifting, stop]), Reply("b"), Reply("c"), Reply("d")])
        engine, url = bench.engine(lambda prompt, body: next(replies))
        servers.folder = tmp_path / f"log-{restart}"
        client = servers.start(url)
        session = create(client, seed=9)
        one = say(client, session, [USER])
        client = servers.start(url) if restart else client
        two = say(client, session, [USER, one, MORE])
        say(client, session, [USER])  # asked a second time: the seed of a repeat
        client = servers.start(url) if restart else client
        say(client, session, [USER, one, MORE, two, USER])
        return [(call["input_ids"], call["sampling_params"]) for call in engine.calls]

    assert play(restart=True) == play(restart=False)


def test_keys_and_dropped_connections_get_the_recorded_turn_from_the_next_server_too(bench, servers, Reply, until):
    engine, url = bench.engine(numbered(Reply))
    client = servers.start(url)
    session = create(client)
    key = {"Idempotency-Key": "k1"}
    assert say(client, session, [USER], headers=key)["content"] == "answer 0"
    engine.script = lambda prompt, body: Reply("slow", delay_s=0.3)
    path = f"{client.base_url}/sessions/{session}/v1/chat/completions"
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(path, json={"messages": [MORE]}, timeout=0.1)
    until(lambda: len(client.get(f"/sessions/{session}").json()["turns"]) == 2, "the turn")
    engine.script = lambda prompt, body: Reply("sampled anew")
    client = servers.start(url)
    assert say(client, session, [USER], headers=key)["content"] == "answer 0"
    assert say(client, session, [MORE])["content"] == "slow"
    assert len(engine.calls) == 2
    # It was taken now: the same request again is another one, also after one more start.
    client = servers.start(url)
    assert say(client, session, [MORE])["content"] == "sampled anew"
    assert (
        client.post(path.split("7.0.0.1")[1].partition("/")[2], json={"messages": [MORE]}, headers=key).status_code
        == 409
    )


def test_a_second_key_for_a_turn_is_remembered(bench, servers, Reply):
    engine, url = bench.engine(numbered(Reply))
    client = servers.start(url)
    session = create(client)
    say(client, session, [USER])
    say(client, session, [USER], headers={"Idempotency-Key": "k2", "x-stainless-retry-count": "1"})
    client = servers.start(url)
    assert say(client, session, [USER], headers={"Idempotency-Key": "k2"})["content"] == "answer 0"
    assert len(engine.calls) == 1


def test_a_turn_whose_delivery_is_not_on_record_counts_as_taken_and_answers_the_same_request_once(
    bench, servers, Reply
):
    engine, url = bench.engine(numbered(Reply))
    client = servers.start(url)
    session = create(client)
    say(client, session, [USER])
    servers.stop()
    servers.app = None
    (path,) = (servers.folder / "shard-000").glob("*.log")
    data = path.read_bytes()
    last = list(scan(data))[-1]
    assert decode(last.payload).kind is Kind.DELIVERY
    path.write_bytes(data[: last.start])  # as if the server had died between its record and its answer
    client = servers.start(url)
    assert client.get(f"/sessions/{session}").json()["turns"][0]["delivered"] is True
    assert say(client, session, [USER])["content"] == "answer 0"
    assert say(client, session, [USER])["content"] == "answer 1"
    assert len(engine.calls) == 2


def test_deleted_and_expired_sessions_stay_gone_and_leave_nothing_behind(bench, servers, Reply, until):
    _, url = bench.engine(numbered(Reply))
    client = servers.start(url, log={"segment_bytes": 4096, "compact_s": 0.1, "fsync_interval_s": 0.05})
    kept = create(client)
    say(client, kept, [{"role": "user", "content": "keep me"}])
    for _ in range(6):
        session = create(client)
        say(client, session, [{"role": "user", "content": "x" * 3000}])
        assert client.delete(f"/sessions/{session}").status_code == 204
    until(lambda: sum(p.stat().st_size for p in servers.folder.rglob("*.log")) < 15_000, "the compaction")
    before = samples(client, kept)
    client = servers.start(url, log={"segment_bytes": 4096})
    assert client.get(f"/sessions/{session}").status_code == 404
    assert samples(client, kept) == before
    client = servers.start(url, ttl_s=0.001)
    assert client.get(f"/sessions/{kept}").status_code == 404
    assert [r.kind for r in records(servers.folder) if r.session_id == kept][-1] is Kind.ENDED


def test_a_damaged_record_is_skipped_and_its_session_says_so(bench, servers, Reply):
    _, url = bench.engine(numbered(Reply))
    client = servers.start(url)
    hurt, well = create(client), create(client)
    for session in (hurt, well):
        first = say(client, session, [USER])
        say(client, session, [USER, first, MORE])
        say(client, session, [MORE])
    before = samples(client, well)
    servers.stop()
    servers.app = None
    (path,) = (servers.folder / "shard-000").glob("*.log")
    data = bytearray(path.read_bytes())
    turns = [
        piece
        for piece in scan(bytes(data))
        if decode(piece.payload).kind is Kind.TURN and decode(piece.payload).session_id == hurt
    ]
    data[turns[1].start + 100] ^= 1
    path.write_bytes(data)
    client = servers.start(url)
    assert samples(client, well) == before
    state = client.get(f"/sessions/{hurt}").json()
    assert [turn["turn_id"] for turn in state["turns"]] == ["0", "1"]
    assert "missing from the log" in state["log_damaged"]
    assert all("missing" in sample.metadata["log_damaged"] for sample in samples(client, hurt))
    # It goes on, and its new turns are on record.
    say(client, hurt, [USER, {"role": "assistant", "content": "answer 0"}, USER])
    client = servers.start(url)
    assert len(client.get(f"/sessions/{hurt}").json()["turns"]) == 3


def test_a_log_that_cannot_be_written_fails_the_turn_and_loses_nothing_before(bench, servers, Reply, monkeypatch):
    _, url = bench.engine(numbered(Reply))
    client = servers.start(url)
    session = create(client)
    first = say(client, session, [USER])
    log = servers.app.service.journal.log

    def full(*_):
        raise SessionError("the session log cannot be written (No space left on device).", status=507)

    monkeypatch.setattr(log, "append", full)
    path = f"/sessions/{session}/v1/chat/completions"
    answer = client.post(path, json={"messages": [USER, first, MORE]})
    assert answer.status_code == 507
    assert client.post("/sessions", json={}).status_code == 507
    monkeypatch.undo()
    state = client.get(f"/sessions/{session}").json()
    assert [turn["turn_id"] for turn in state["turns"]] == ["0"]
    assert say(client, session, [USER, first, MORE])["content"] == "answer 2"
    client = servers.start(url)
    assert len(client.get(f"/sessions/{session}").json()["turns"]) == 2


def test_with_fsync_always_no_answer_ends_before_its_record_is_synced(bench, servers, Reply, monkeypatch):
    import os

    synced, real = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(os.fstat(file).st_size), real(file)))
    _, url = bench.engine(numbered(Reply))
    client = servers.start(url, log={"fsync": "always"})
    session = create(client)
    say(client, session, [USER])
    place = next(piece.end for piece in _frames(servers.folder) if decode(piece.payload).kind is Kind.TURN)
    assert synced[-1] >= place


def _frames(folder: Path) -> list[Frame]:
    (path,) = (folder / "shard-000").glob("*.log")
    return list(scan(path.read_bytes()))


def test_two_servers_never_share_a_folder_and_a_folder_keeps_its_number_of_shards(bench, servers, Reply, model_dir):
    from miles_core.errors import ConfigError
    from miles_router.sessions.log.shards import ShardedLog

    _, url = bench.engine()
    servers.start(url)
    with pytest.raises(SessionError, match="found its owner alive"):
        bench.sessions(url, log=LogConfig(folder=servers.folder, owner_wait_s=0.0))
    # One that is on its way out is waited for.
    threading.Timer(0.3, servers.stop).start()
    _, second = bench.sessions(url, log=LogConfig(folder=servers.folder))
    servers.app = None
    assert bench.client(second).post("/sessions").status_code == 200
    with pytest.raises(ConfigError, match="has 1 shards, 4 were asked for"):
        ShardedLog(LogConfig(folder=servers.folder, shards=4))
