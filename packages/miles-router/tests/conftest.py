"""A scripted engine that speaks SGLang's HTTP over a real socket, and a small ChatML tokenizer."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from miles_core import sample_codec
from miles_router.app import create_router_app
from miles_router.config import HealthConfig, RouterConfig
from miles_router.serve import ServerThread
from miles_router.sessions.app import create_session_app
from miles_router.sessions.config import SessionServerConfig
from miles_tito import ChatTokenizer

CHATML = """\
{%- if tools %}{{ '<|im_start|>system\\nTools:' }}{% for tool in tools %}{{ ' ' + (tool | tojson) }}{% endfor %}\
{{ '<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{%- set body = {'name': call.function.name, 'arguments': call.function.arguments} %}
{{- '\\n<tool_call>\\n' + (body | tojson) + '\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    """A folder with a byte-level BPE of 400 entries and a ChatML template."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    corpus = [
        "the tool answered that the weather in Paris is fine",
        "user assistant system",
        "hello there, hello world",
    ]
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(corpus * 4, trainer)
    marks = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    tokenizer.add_special_tokens([AddedToken(mark, normalized=False, special=True) for mark in marks])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    (folder / "chat_template.jinja").write_text(CHATML)
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 4096}))
    return folder


@pytest.fixture(scope="session")
def chat(model_dir) -> ChatTokenizer:
    return ChatTokenizer.from_pretrained(model_dir)


@dataclass
class Reply:
    """What the engine does with one call. text is encoded and ended by the stop token; ids are taken as they are."""

    text: str = "ok"
    ids: list[int] | None = None
    finish: str = "stop"
    delay_s: float = 0.0
    """Before the answer starts."""
    step_s: float = 0.0
    """Between the events of a stream."""
    status: int = 200
    cut_after: int | None = None
    """Break the connection after so many events of a stream."""
    hang: bool = False
    drop_logprob: bool = False
    meta: dict[str, Any] = field(default_factory=dict)


class FakeEngine:
    """An ASGI app with SGLang's surface. `script` gives the reply to a call from its prompt text and body."""

    def __init__(self, chat: ChatTokenizer | None, script: Callable[[str, dict], Reply] | None = None) -> None:
        self.chat = chat
        self.script = script or (lambda prompt, body: Reply())
        self.version: Any = "0"
        self.context_length: int | None = 4096
        self.healthy = True
        self.calls: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.active = 0
        self.left = 0
        """Calls whose client went away before the answer was complete."""

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        path = scope["path"]
        if path == "/health":
            await self._json(send, 200 if self.healthy else 503, {})
        elif path in ("/model_info", "/server_info"):
            info = {"weight_version": self.version, "context_length": self.context_length}
            await self._json(send, 200, info)
        elif path == "/generate":
            await self._watched(json.loads(body), scope, receive, send)
        elif path == "/echo":
            found = {
                "method": scope["method"],
                "query": scope["query_string"].decode(),
                "headers": [[n.decode(), v.decode()] for n, v in scope["headers"]],
                "size": len(body),
            }
            await self._json(
                send,
                200,
                found,
                [(b"x-twice", b"1"), (b"x-twice", b"2"), (b"connection", b"x-private"), (b"x-private", b"1")],
            )
        else:
            await self._json(send, 404, {"error": path})

    async def _watched(self, body, scope, receive, send) -> None:
        self.calls.append(body)
        self.headers.append({n.decode(): v.decode() for n, v in scope["headers"]})
        self.active += 1
        work = asyncio.ensure_future(self._generate(body, send))
        gone = asyncio.ensure_future(receive())
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                self.left += 1
                return
            work.result()
        finally:
            self.active -= 1
            work.cancel()
            gone.cancel()
            await asyncio.wait({work, gone})

    async def _generate(self, body, send) -> None:
        prompt = self.chat.vocabulary.decode(body["input_ids"]) if self.chat else ""
        reply = self.script(prompt, body)
        await asyncio.sleep(reply.delay_s)
        if reply.hang:
            await asyncio.sleep(3600)
        if reply.status != 200:
            await self._json(send, reply.status, {"error": {"message": "scripted", "type": "x", "code": None}})
            return
        ids = list(reply.ids) if reply.ids is not None else self.ids_of(reply)
        limit = body.get("sampling_params", {}).get("max_new_tokens", 10**9)
        finish = "length" if len(ids) > limit else reply.finish
        ids = ids[:limit]
        if not body.get("stream"):
            await self._json(send, 200, self.answer(ids, finish, reply, len(body["input_ids"])))
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for end in range(1, len(ids) + 1):
            if reply.cut_after == end - 1:
                return
            state = self.answer(ids[:end], finish if end == len(ids) else None, reply, len(body["input_ids"]))
            event = b"data: " + json.dumps(state).encode() + b"\n\n"
            await send({"type": "http.response.body", "body": event, "more_body": True})
            await asyncio.sleep(reply.step_s)
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    def ids_of(self, reply: Reply) -> list[int]:
        ids, _ = self.chat.vocabulary.encode(reply.text)
        return [*ids, self.chat.vocabulary.id_of("<|im_end|>")] if reply.finish == "stop" else ids

    def answer(self, ids, finish, reply, prompt_tokens) -> dict[str, Any]:
        logprobs = [[logprob_of(token), token, None] for token in ids]
        reason = None if finish is None else {"type": finish}
        if finish == "abort":
            reason["message"] = "scripted abort"
        meta = {
            "finish_reason": reason,
            "prompt_tokens": prompt_tokens,
            "completion_tokens": len(ids),
            "cached_tokens": 3,
            "weight_version": self.version,
            "output_token_logprobs": logprobs[1:] if reply.drop_logprob else logprobs,
            **reply.meta,
        }
        return {"text": "", "output_ids": ids, "meta_info": meta}

    async def _json(self, send, status, value, headers=()) -> None:
        data = json.dumps(value).encode()
        fields = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode()), *headers]
        await send({"type": "http.response.start", "status": status, "headers": fields})
        await send({"type": "http.response.body", "body": data})


def logprob_of(token: int) -> float:
    """The log-probability that the engine reports for a token: exact in binary."""
    return -(token % 8 + 1) / 16


class Bench:
    """Starts engines, routers and session servers for one test, and ends them."""

    def __init__(self, stack: ExitStack, chat: ChatTokenizer, model_dir) -> None:
        self._stack = stack
        self.chat = chat
        self.model_dir = model_dir
        self._servers: list[ServerThread] = []
        stack.callback(self._stop)

    def _stop(self) -> None:
        for server in self._servers:
            server.request_stop()
        for server in self._servers:
            server.stop()

    def engine(self, script=None) -> tuple[FakeEngine, str]:
        engine = FakeEngine(self.chat, script)
        return engine, self.serve(engine)

    def serve(self, app) -> str:
        self._servers.append(ServerThread(app).start())
        return self._servers[-1].url

    def router(self, *urls: str, health: dict | None = None, **options):
        checks = HealthConfig(**{"interval_s": 0.05, "max_backoff_s": 0.2, "timeout_s": 1.0, **(health or {})})
        app = create_router_app(RouterConfig(workers=tuple(urls), health=checks, **options))
        url = self.serve(app)
        if urls:
            until(lambda: sum(w.state == "healthy" for w in app.pool.workers) == len(urls), "healthy workers")
        return app, url

    def sessions(self, engine_url: str, **options):
        config = SessionServerConfig(engine_url=engine_url, model_dir=self.model_dir, **options)
        app = create_session_app(config, chat=self.chat)
        return app, self.serve(app)

    def client(self, url: str, **options) -> httpx.Client:
        return self._stack.enter_context(httpx.Client(base_url=url, timeout=20.0, **options))


@pytest.fixture
def bench(chat, model_dir) -> Iterator[Bench]:
    with ExitStack() as stack:
        yield Bench(stack, chat, model_dir)


def until(condition: Callable[[], Any], what: str, *, timeout_s: float = 10.0) -> None:
    """Wait for a condition; a test that waits too long says for what."""
    give_up = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up, f"waited {timeout_s} s for {what}"
        time.sleep(0.005)


class SessionCaller:
    """A client of one session server, with the calls that tests make most."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    def url(self, session) -> str:
        return f"{self.http.base_url}/sessions/{session}/v1/chat/completions"

    def create(self, **spec) -> str:
        answer = self.http.post("/sessions", json=spec)
        assert answer.status_code == 200, answer.text
        return answer.json()["session_id"]

    def ask(self, session, messages, *, headers=None, **fields) -> httpx.Response:
        body = {"messages": messages, **fields}
        return self.http.post(f"/sessions/{session}/v1/chat/completions", json=body, headers=headers)

    def say(self, session, messages, **fields) -> dict[str, Any]:
        answer = self.ask(session, messages, **fields)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["message"]

    def stream(self, session, messages, **fields) -> list[dict[str, Any]]:
        """All chunks of a stream; `[DONE]` must end it."""
        body = {"messages": messages, "stream": True, **fields}
        answer = self.http.post(f"/sessions/{session}/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        events = [line.removeprefix("data: ") for line in answer.text.split("\n") if line]
        assert events[-1] == "[DONE]", events[-1]
        return [json.loads(event) for event in events[:-1]]

    def samples(self, session):
        answer = self.http.post(f"/sessions/{session}/samples", json={"prompt_id": "0-1", "rollout_id": "1/0-1/0"})
        assert answer.status_code == 200, answer.text
        return sample_codec.decode(answer.content)

    def state(self, session) -> dict[str, Any]:
        return self.http.get(f"/sessions/{session}").json()


@pytest.fixture
def caller(bench):
    """Starts a session server in front of an engine and returns a caller of it."""

    def start(engine_url: str, **options) -> SessionCaller:
        return SessionCaller(bench.client(bench.sessions(engine_url, **options)[1]))

    return start


@pytest.fixture(name="until")
def until_fixture():
    return until


@pytest.fixture(name="Reply")
def reply_fixture():
    return Reply


@pytest.fixture(name="logprob_of")
def logprob_fixture():
    return logprob_of


@pytest.fixture
def raw_server() -> Iterator[Callable[[bytes], str]]:
    """Starts a server that reads a request and answers with the given bytes, then closes. Returns its URL."""
    listeners: list[socket.socket] = []

    def start(answer: bytes) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
