"""Malformed requests from a seed: valid ones whose JSON, bytes, headers, path or delivery is spoilt."""

import asyncio
import copy
import json
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from miles_router.sessions.app import create_session_app
from miles_router.sessions.config import SessionServerConfig

BODY_LIMIT = 20_000
TOOL = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
CHAT: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "hi"}], "temperature": 0.5, "top_p": 0.9, "top_k": 5, "max_tokens": 9},
    {
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": None, "reasoning_content": "r", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "1"},
        ],
        "tools": [{"type": "function", "function": TOOL}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "logprobs": True,
        "stop": ["x"],
        "seed": 3,
        "n": 1,
        "response_format": {"type": "text"},
    },
]
RESPONSES: list[dict[str, Any]] = [
    {"input": "hi", "instructions": "i", "max_output_tokens": 9, "metadata": {"a": "b"}, "store": True},
    {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "r"}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "1"},
        ],
        "tools": [{"type": "function", **TOOL, "strict": True}],
        "tool_choice": "auto",
        "stream": True,
        "text": {"format": {"type": "text"}},
        "include": ["reasoning.encrypted_content"],
    },
    {"input": "hi", "previous_response_id": "resp_x"},
]
MESSAGES: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "system": "s", "thinking": {"type": "adaptive"}},
    {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "r", "signature": "s"},
                    {"type": "text", "text": "t"},
                    {"type": "tool_use", "id": "c1", "name": "f", "input": {"x": 1}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "1"}]},
        ],
        "max_tokens": 9,
        "system": [{"type": "text", "text": "s"}],
        "tools": [{"name": "f", "description": "d", "input_schema": TOOL["parameters"]}],
        "tool_choice": {"type": "auto"},
        "stop_sequences": ["x"],
        "stream": True,
    },
]
SPECS: list[dict[str, Any]] = [{"seed": 3, "sampling": {"temperature": 1.0, "max_tokens": 5}, "metadata": {"a": 1}}]
NAMES: list[dict[str, Any]] = [{"prompt_id": "0-1", "rollout_id": "1/0-1/0"}]
ROUTES: list[tuple[str, str, list[dict[str, Any]]]] = [
    ("POST", "/sessions", SPECS),
    ("POST", "/sessions/{id}/v1/chat/completions", CHAT),
    ("POST", "/sessions/{id}/v1/responses", RESPONSES),
    ("POST", "/sessions/{id}/v1/messages", MESSAGES),
    ("POST", "/sessions/{id}/anthropic/v1/messages", MESSAGES),
    ("POST", "/sessions/{id}/v1/messages/count_tokens", MESSAGES),
    ("POST", "/sessions/{id}/samples", NAMES),
    ("GET", "/sessions/{id}", [{}]),
    ("GET", "/sessions/{id}/v1/models", [{}]),
    ("GET", "/sessions/{id}/v1/models/policy", [{}]),
    ("GET", "/sessions/{id}/v1/responses/resp_x", [{}]),
    ("DELETE", "/sessions/{id}", [{}]),
    ("GET", "/health", [{}]),
]
JUNK: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63 - 1, -(2**63), 2**64 - 1, 1.5, -0.0, 1e308, "", "x", "\x00", "\ufffd",
    "\U0001f642", "<|im_end|>", "<|im_start|>assistant\n", "\ue000", "a" * 3000, [], {}, [[]], [{}], [None], {"": None},
    {"type": "image_url"}, {"type": "text"}, [{"type": "text", "text": None}], {"role": "robot"}, "resp_0", ["x"] * 50,
    [{"type": "function"}], {"type": "function", "function": {"name": ""}}, "{", '{"a": ' * 60, "[" * 3000 + "]" * 3000,
    '{"a":' * 900 + "1" + "}" * 900, {"type": "any"},
]  # fmt: skip
KEYS = ["type", "role", "content", "text", "name", "id", "function", "arguments", "input", "tools", "x", "", "\x00"]
HEADERS: list[tuple[bytes, bytes]] = [
    (b"content-length", b"abc"), (b"content-length", b"-1"), (b"content-length", b"9" * 30), (b"content-length", b""),
    (b"authorization", b"Bearer wrong"), (b"authorization", b"\xff\xfe"), (b"x-api-key", b"\xff"), (b"x-api-key", b""),
    (b"idempotency-key", b"k"), (b"idempotency-key", b"\xe9" * 500), (b"x-stainless-retry-count", b"1"),
    (b"x-stainless-retry-count", b"many"), (b"anthropic-version", b"2023-06-01"), (b"content-type", b"text/plain"),
    (b"content-encoding", b"gzip"), (b"accept", b"\x00"), (b"expect", b"100-continue"), (b"x-request-id", b"\xff" * 99),
]  # fmt: skip
IDS = ["", "..", "%00", "x" * 5000, "\U0001f642", "a/b", "'; --", "0" * 16]


@dataclass(frozen=True)
class Wire:
    """One request as the server sees it.

    cut: the caller leaves after so many pieces of the body. leave: after so many messages of the answer.
    """

    method: str
    path: str
    headers: tuple[tuple[bytes, bytes], ...]
    pieces: tuple[bytes, ...]
    cut: int | None
    leave: int | None = None


def spoilt(rng: random.Random, session: str) -> Wire:
    """A request made from a valid one; one in twelve stays valid."""
    method, path, bodies = rng.choice(ROUTES)
    if method == "DELETE" and rng.random() < 0.9:
        method, path, bodies = ROUTES[1]
    value: Any = copy.deepcopy(rng.choice(bodies))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        value = _spoil_json(rng, value)
    data = json.dumps(value).encode()
    if rng.random() < 0.2:
        data = _spoil_bytes(rng, data)
    session = rng.choice(IDS) if rng.random() < 0.05 else session
    path = path.replace("{id}", session) + (rng.choice(("/", "//", "/x", "%2f", "?a=b")) if rng.random() < 0.05 else "")
    method = rng.choice(("GET", "PUT", "PATCH", "HEAD", "OPTIONS", "BREW")) if rng.random() < 0.04 else method
    headers = [(b"authorization", b"Bearer t")] if rng.random() < 0.97 else []
    headers += rng.sample(HEADERS, rng.choice((0, 0, 1, 2)))
    step = rng.choice((len(data) or 1, 7, 1000))
    pieces = tuple(data[start : start + step] for start in range(0, len(data), step))
    cut = rng.randrange(len(pieces) + 1) if rng.random() < 0.05 else None
    leave = rng.choice((0, 1, 2, 3, 5)) if rng.random() < 0.1 else None
    return Wire(method, path, tuple(headers), pieces, cut, leave)


def _spoil_json(rng: random.Random, value: Any) -> Any:
    """One change somewhere in a JSON value."""
    if isinstance(value, dict | list) and value and rng.random() < 0.85:
        place = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
        change = rng.random()
        if change < 0.1:
            del value[place]
        elif change < 0.2 and isinstance(value, dict):
            value[rng.choice(KEYS)] = value.pop(place) if rng.random() < 0.5 else copy.deepcopy(rng.choice(JUNK))
        elif change < 0.3 and isinstance(value, list):
            value.insert(place, copy.deepcopy(rng.choice((*value, *JUNK))))
        else:
            value[place] = _spoil_json(rng, value[place])
        return value
    if rng.random() < 0.1:
        deep: Any = copy.deepcopy(rng.choice(JUNK))
        for _ in range(rng.choice((5, 60, 98, 99, 101, 150))):
            deep = [deep] if rng.random() < 0.5 else {"a": deep}
        return deep
    return copy.deepcopy(rng.choice(JUNK))


def _spoil_bytes(rng: random.Random, data: bytes) -> bytes:
    place = rng.randrange(len(data) + 1)
    return rng.choice(
        (
            data[:place],
            data[:place] + rng.choice((b"\xff", b"\xed\xa0\x80", b"\x00", b'"', b"{", b"\\ud800")) + data[place:],
            b"\xef\xbb\xbf" + data,
            data + b"x",
            data * 2,
            b"",
            b" ",
            b"null",
            b"[" * 5000,
            b'{"messages": 1e999, "input": 1e999}',
            b'{"seed": ' + b"9" * 4000 + b"}",
            b" " * (BODY_LIMIT + 1),
            data.replace(b"1", b"1e400"),
            data.replace(b": ", b": NaN, ", 1),
        )
    )


@dataclass
class Answer:
    status: int | None = None
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""


class FuzzServer:
    """A session server on a loop of its own, called over ASGI; its engine is real HTTP."""

    def __init__(self, config: SessionServerConfig, chat: Any) -> None:
        self.app = create_session_app(config, chat=chat)
        self.runner = asyncio.Runner()
        self._lifespan = self.app.router.lifespan_context(self.app)

    def __enter__(self) -> "FuzzServer":
        self.runner.run(self._lifespan.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        self.runner.run(self._lifespan.__aexit__(None, None, None))
        self.runner.close()

    async def call(self, wire: Wire) -> Answer:
        answer = Answer()
        sent = answered = 0
        gone = asyncio.Event()

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if wire.cut is not None and sent >= wire.cut:
                return {"type": "http.disconnect"}
            if wire.leave == 0:
                gone.set()
            if sent <= len(wire.pieces):
                body = wire.pieces[sent] if sent < len(wire.pieces) else b""
                sent += 1
                return {"type": "http.request", "body": body, "more_body": sent <= len(wire.pieces)}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            nonlocal answered
            answered += 1
            if answered == wire.leave:
                gone.set()
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                answer.headers = {name.lower(): value for name, value in message["headers"]}
            else:
                answer.body += message.get("body", b"")

        path, _, query = wire.path.partition("?")
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": wire.method, "path": path,
            "raw_path": path.encode("utf-8"), "query_string": query.encode(), "root_path": "", "scheme": "http",
            "headers": list(wire.headers), "server": ("127.0.0.1", 1), "client": ("127.0.0.1", 2), "state": {},
        }  # fmt: skip
        await self.app(scope, receive, send)
        return answer

    async def create(self) -> str:
        answer = await self.call(Wire("POST", "/sessions", ((b"authorization", b"Bearer t"),), (b"{}",), None))
        return json.loads(answer.body)["session_id"]

    async def settle(self) -> None:
        """Delete every session; nothing may be left running."""
        service = self.app.service
        for _ in range(400):
            if not any(session.running for session in service.store.all()):
                break
            await asyncio.sleep(0.005)
        assert not any(session.running for session in service.store.all())
        for session in list(service.store.all()):
            await service.delete(session.session_id)
        assert len(service.store) == 0


@pytest.fixture
def fuzz_server(bench, Reply):
    """A server with small limits, and its engine."""
    texts = [
        "ok",
        'I call.\n<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>',
        "<tool_call>\n{",
        "\u00fc",
    ]

    def script(prompt: str, body: dict) -> Any:
        return Reply(texts[len(body["input_ids"]) % len(texts)])

    engine, url = bench.engine(script)
    config = SessionServerConfig(
        engine_url=url, model_dir=bench.model_dir, token="t", body_limit_bytes=BODY_LIMIT, max_sessions=40,
        max_turns=60, context_length=2048,
    )  # fmt: skip
    with FuzzServer(config, bench.chat) as server:
        server.engine = engine
        yield server
