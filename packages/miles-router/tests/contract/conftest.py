"""The server that the contract is held against: the one at MILES_CONTRACT_URL, else ours before a scripted engine.

Nothing here assumes what the model says: an engine may answer anything, as long as it answers.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from miles_core import sample_codec

TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Contract:
    """A caller of one server. token: what the server asks for, None when it lets everyone in."""

    http: httpx.Client
    token: str | None

    def create(self, **spec: Any) -> "Session":
        answer = self.http.post("/sessions", json=spec)
        assert answer.status_code == 200, answer.text
        return Session(self, answer.json()["session_id"])

    def anonymous(self) -> httpx.Client:
        return httpx.Client(base_url=self.http.base_url, timeout=TIMEOUT_S)


@dataclass(frozen=True)
class Session:
    """One session of the server."""

    contract: Contract
    session_id: str

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return self.contract.http.post(f"/sessions/{self.session_id}{path}", json=body, **options)

    def get(self, path: str = "", **options: Any) -> httpx.Response:
        return self.contract.http.get(f"/sessions/{self.session_id}{path}", **options)

    def ok(self, path: str, body: Any, **options: Any) -> Any:
        answer = self.post(path, body, **options)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def say(self, messages: list[Any], **fields: Any) -> dict[str, Any]:
        """A chat completion."""
        return self.ok("/v1/chat/completions", {"messages": messages, "max_tokens": 8, **fields})

    def state(self) -> dict[str, Any]:
        return self.get().json()

    def samples(self) -> list[Any]:
        answer = self.post("/samples", {"prompt_id": "0-1", "rollout_id": "1/0-1/0"})
        assert answer.status_code == 200, answer.text
        return sample_codec.decode(answer.content)


def read_stream(answer: httpx.Response) -> list[tuple[str, Any]]:
    """(event name, data) pairs; comments and pings left out, `[DONE]` kept as text."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = []
    for block in answer.text.replace("\r\n", "\n").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if "data" in fields and fields.get("event") != "ping":
            data = fields["data"]
            events.append((fields.get("event", ""), data if data == "[DONE]" else json.loads(data)))
    return events


@pytest.fixture
def contract(request) -> Iterator[Contract]:
    url, token = os.environ.get("MILES_CONTRACT_URL"), os.environ.get("MILES_CONTRACT_TOKEN")
    if url is None:
        bench, reply = request.getfixturevalue("bench"), request.getfixturevalue("Reply")
        token = "t"
        _, engine = bench.engine(lambda prompt, body: reply(f"I say {len(body['input_ids'])}.", step_s=0.001))
        _, url = bench.sessions(engine, token=token)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT_S) as http:
        yield Contract(http, token)


@pytest.fixture
def session(contract) -> Iterator[Session]:
    session = contract.create(sampling={"max_tokens": 8})
    yield session
    contract.http.delete(f"/sessions/{session.session_id}")


@pytest.fixture(name="read_stream")
def read_stream_fixture():
    return read_stream
