"""A session server over real HTTP for the tests, and small builders."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import settings

from miles_core.prompt import Prompt, SamplingConfig
from miles_core.protocols import RolloutContext
from miles_core.sample import Finish, Origin, Sample, Span
from miles_core.sample_codec import encode

# Time limits of single examples say how busy the machine is, nothing about the code.
settings.register_profile("miles", deadline=None)
settings.load_profile("miles")


@dataclass
class SessionRecord:
    """One session: what it was opened with, and its turns as (request, reply)."""

    spec: Mapping[str, Any]
    turns: list[tuple[Mapping[str, Any], str]] = field(default_factory=list)


class SessionServer:
    """Speaks the session server's contract; `reply` is the policy, the delays and statuses are the faults."""

    def __init__(self) -> None:
        self.sessions: dict[str, SessionRecord] = {}
        self.specs: list[Mapping[str, Any]] = []
        self.deleted: list[str] = []
        self.headers: list[Mapping[str, str]] = []
        self.reply: Callable[[SessionRecord, Mapping[str, Any]], str] = lambda record, body: "four"
        self.chat_delay_s = 0.0
        self.samples_delay_s = 0.0
        self.samples_status = 200
        self.create_status = 200
        self.create_delay_s = 0.0
        self.assembled: list[Sample] | None = None
        self.in_flight = 0
        self.most_in_flight = 0
        self.lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            timeout = 20

            def log_message(self, *args: Any) -> None:
                return

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"null")
                server.headers.append(dict(self.headers))
                self._answer(*server.post(self.path, body))

            def do_GET(self) -> None:
                record = server.sessions.get(self.path.split("/")[2])
                found = {"turns": [request for request, _ in record.turns]} if record else None
                self._answer(200 if found else 404, found or error("no such session"))

            def do_DELETE(self) -> None:
                name = self.path.split("/")[2]
                known = server.sessions.pop(name, None) is not None
                server.deleted.append(name)
                self._answer(204 if known else 404, b"" if known else error("no such session"))

            def _answer(self, status: int, body: Any) -> None:
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                try:
                    self.send_response(status)
                    if status != 204:
                        self.send_header("content-length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except ConnectionError:
                    self.close_connection = True

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._http.block_on_close = False
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        parts = path.strip("/").split("/")
        if parts == ["sessions"]:
            return self._create(body)
        record = self.sessions.get(parts[1])
        if record is None:
            return 404, error("no such session")
        if parts[2:] == ["samples"]:
            return self._samples(record, body)
        if parts[2:] == ["v1", "chat", "completions"]:
            return self._chat(record, body)
        return 404, error("no such path")

    def _create(self, body: Mapping[str, Any]) -> tuple[int, Any]:
        if self.create_status != 200:
            return self.create_status, error("no room")
        time.sleep(self.create_delay_s)
        with self.lock:
            name = f"s{len(self.specs)}"
            self.specs.append(body)
            self.sessions[name] = SessionRecord(spec=body)
        return 200, {"session_id": name}

    def _chat(self, record: SessionRecord, body: Mapping[str, Any]) -> tuple[int, Any]:
        with self.lock:
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
        time.sleep(self.chat_delay_s)
        text = self.reply(record, body)
        record.turns.append((body, text))
        with self.lock:
            self.in_flight -= 1
        message = {"role": "assistant", "content": text}
        return 200, {"id": "c", "object": "chat.completion", "choices": [{"index": 0, "message": message}]}

    def _samples(self, record: SessionRecord, body: Mapping[str, Any]) -> tuple[int, Any]:
        time.sleep(self.samples_delay_s)
        if self.samples_status != 200:
            return self.samples_status, error("the tokens do not fit")
        if self.assembled is not None:
            return 200, encode(self.assembled)
        if not record.turns:
            return 422, error("the session has no turns")
        request, reply = record.turns[-1]
        spans = []
        for _, text in record.turns:
            ids = tuple(text.encode())
            spans.append(Span(origin=Origin.PROMPT if not spans else Origin.ENVIRONMENT, ids=(1, 2)))
            logprobs, versions = (-0.5,) * len(ids), (3,) * len(ids)
            spans.append(Span(origin=Origin.SAMPLED, ids=ids, logprobs=logprobs, weight_versions=versions))
        sample = Sample(
            prompt_id=body["prompt_id"],
            rollout_id=body["rollout_id"],
            spans=tuple(spans),
            finish=Finish.STOP,
            messages=(*request["messages"], {"role": "assistant", "content": reply}),
            metadata={"turns": len(record.turns), "tito": {"hard": 0, "soft": 1}},
        )
        return 200, encode([sample])

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


def error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "test", "code": None}}


@pytest.fixture
def session_server() -> Iterator[SessionServer]:
    server = SessionServer()
    yield server
    server.close()


@pytest.fixture
def make_sample() -> Callable[..., Sample]:
    """A judged-able sample: two prompt ids, then the sampled ids."""

    def make(
        answer: str = "four",
        *,
        prompt_id: str = "0-0",
        rollout_id: str = "0/0-0/0",
        reward: float | None = None,
        finish: Finish = Finish.STOP,
        error: str | None = None,
        **metadata: Any,
    ) -> Sample:
        ids = tuple(answer.encode())
        sampled = Span(origin=Origin.SAMPLED, ids=ids, logprobs=(-0.25,) * len(ids), weight_versions=(1,) * len(ids))
        return Sample(
            prompt_id=prompt_id,
            rollout_id=rollout_id,
            spans=(Span(origin=Origin.PROMPT, ids=(1, 2)), sampled),
            finish=finish,
            reward=reward,
            error=error,
            messages=({"role": "user", "content": "2+2?"}, {"role": "assistant", "content": answer}),
            metadata=metadata,
        )

    return make


@pytest.fixture
def make_prompt() -> Callable[..., Prompt]:
    def make(label: Any = "4", *, prompt_id: str = "0-0", **fields: Any) -> Prompt:
        return Prompt(prompt_id=prompt_id, messages=({"role": "user", "content": "2+2?"},), label=label, **fields)

    return make


@pytest.fixture
def make_context(session_server: SessionServer) -> Callable[..., RolloutContext]:
    def make(**fields: Any) -> RolloutContext:
        given = {
            "rollout_id": "0/0-0/0",
            "step": 0,
            "seed": 7,
            "session_url": session_server.url,
            "sampling": SamplingConfig(temperature=0.8, max_tokens=9),
            "max_seq_len": 100,
            "timeout_s": 10.0,
        }
        return RolloutContext(**{**given, **fields})

    return make
