"""Middleware around the proxied calls: order, and the recorded ids of texts."""

import json

import httpx
import pytest

from miles_core.errors import ConfigError, PluginError
from miles_router.app import create_router_app
from miles_router.config import RouterConfig
from miles_router.middleware.plugin import PluginMiddlewareConfig
from miles_router.middleware.table import middleware_of

OWN = """
class Tag:
    def __init__(self, app, *, tag):
        self.app, self.tag = app, tag.encode()

    async def __call__(self, scope, receive, send):
        async def tagged(message):
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-tags", self.tag)]
            await send(message)

        scope["headers"] = [*scope["headers"], (b"x-tags", self.tag)]
        await self.app(scope, receive, tagged)


class Door:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        if scope["path"] == "/closed":
            await send({"type": "http.response.start", "status": 403, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        else:
            await self.app(scope, receive, send)
"""


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    return f"{tmp_path}/own.py"


def test_middleware_stands_in_its_order_around_proxied_calls_and_around_no_others(bench, own):
    _, worker = bench.engine()
    tags = [PluginMiddlewareConfig(name=f"{own}:Tag", options={"tag": tag}) for tag in "ab"]
    _, url = bench.router(worker, middleware=(*tags, PluginMiddlewareConfig(name=f"{own}:Door")))
    answer = httpx.post(f"{url}/echo", content=b"x" * 2_000_000)
    seen = answer.json()
    assert [value for name, value in seen["headers"] if name == "x-tags"] == ["a", "b"]
    assert answer.headers.get_list("x-tags") == ["b", "a"]
    assert seen["size"] == 2_000_000
    assert httpx.post(f"{url}/closed").status_code == 403
    assert "x-tags" not in httpx.get(f"{url}/health").headers


def test_streams_leaving_callers_and_broken_answers_pass_through_middleware(bench, own, Reply, until):
    replies = {1: Reply("abcdefgh", step_s=0.02), 2: Reply("abcdefgh", step_s=0.3), 3: Reply("abc", cut_after=2)}
    engine, worker = bench.engine(lambda prompt, body: replies[len(body["input_ids"])])
    app, url = bench.router(worker, middleware=(PluginMiddlewareConfig(name=f"{own}:Door"),))
    client = bench.client(url)

    def stream(kind):
        return client.stream("POST", "/generate", json={"input_ids": [1] * kind, "stream": True})

    with stream(1) as answer:
        assert "".join(answer.iter_text()).endswith("data: [DONE]\n\n")
    with stream(2) as answer:
        next(answer.iter_raw())
    until(lambda: engine.left == 1, "the engine to see the caller leave")
    with stream(3) as answer, pytest.raises(httpx.RemoteProtocolError):
        list(answer.iter_raw())
    until(lambda: app.pool.workers[0].active == 0, "the count to return to zero")
    assert client.post("/generate", content=b"x" * 5000).status_code < 600
    assert not app.front.proxy._active


def test_the_app_runs_under_another_asgi_server_too(bench, Reply):
    """There the data path is ASGI: the protocol of its connections is left aside."""
    _, worker = bench.engine(lambda prompt, body: Reply("abc"))
    app = create_router_app(RouterConfig(workers=(worker,), body_limit_bytes=3000, replay_bytes=100))

    class Plain:
        async def __call__(self, scope, receive, send):
            await app(scope, receive, send)

    url = bench.serve(Plain())
    client = bench.client(url)
    while client.get("/list_workers").json()["workers"][0]["state"] != "healthy":
        pass
    assert client.post("/generate", json={"input_ids": [1]}).status_code == 200
    assert client.post("/echo", content=b"x" * 2000).json()["size"] == 2000
    assert client.post("/echo", content=(b"x" * 100 for _ in range(20))).json()["size"] == 2000
    assert client.post("/echo", content=(b"x" * 100 for _ in range(50))).status_code == 413
    assert client.head("/echo").status_code == 200
    assert app.pool.workers[0].active == 0


def test_a_middleware_that_cannot_be_is_one_sentence(own, tmp_path):
    with pytest.raises(PluginError, match="called with the options colour"):
        middleware_of(f"{own}:Tag,colour=red").build(None)
    with pytest.raises(ConfigError, match="prefix_tokens"):
        middleware_of("prefix_token,model_dir=x")
    with pytest.raises(ConfigError, match=r"a folder with tokenizer\.json"):
        middleware_of(f"prefix_tokens,model_dir={tmp_path}").build(None)


# Prefix tokens. The engine here samples ids that no tokenizer would choose for their text.

CRUMBS = ["h", "el", "lo"]


@pytest.fixture
def texts(bench, chat, model_dir, Reply, logprob_of):
    """(engine, url, ids of crumbs): the engine answers "hello" in pieces and a stop that its text leaves out."""
    vocabulary = chat.vocabulary
    ids = [token for crumb in CRUMBS for token in vocabulary.encode(crumb)[0]]
    stop = vocabulary.id_of("<|im_end|>")
    assert ids != vocabulary.encode("hello")[0]

    class Engine:
        def __init__(self):
            self.bodies = []

        async def __call__(self, scope, receive, send):
            if scope["type"] == "lifespan":
                await receive()
                await send({"type": "lifespan.startup.complete"})
                await receive()
                await send({"type": "lifespan.shutdown.complete"})
                return
            data = b""
            while True:
                message = await receive()
                data += message.get("body", b"")
                if not message.get("more_body"):
                    break
            body = json.loads(data or b"{}")
            kind, answer = b"application/json", b"{}"
            if scope["path"] == "/generate":
                self.bodies.append(body)
                states = [self.state(n) for n in range(1, len(ids) + 2)]
                if body.get("stream"):
                    kind = b"text/event-stream"
                    events = [json.dumps(state) for state in states] + ["[DONE]"]
                    answer = "".join(f"data: {event}\n\n" for event in events).encode()
                else:
                    answer = json.dumps(states[-1]).encode()
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
            for at in range(0, len(answer), 50):
                await send({"type": "http.response.body", "body": answer[at : at + 50], "more_body": True})
            await send({"type": "http.response.body", "body": b""})

        def state(self, count):
            done = count == len(ids) + 1
            sampled = [*ids, stop][:count]
            meta = {
                "completion_tokens": count,
                "output_token_logprobs": [[logprob_of(token), token, None] for token in sampled],
                "finish_reason": {"type": "stop", "matched": stop} if done else None,
            }
            text = vocabulary.decode(sampled[: len(ids)])
            return {"text": text, "output_ids": sampled, "meta_info": meta}

    engine = Engine()
    config = middleware_of(f"prefix_tokens,model_dir={model_dir}")
    _, url = bench.router(bench.serve(engine), middleware=(config,))
    return engine, url, [*ids, stop]


@pytest.mark.parametrize("stream", [False, True])
def test_sampled_text_goes_back_as_the_ids_that_were_sampled(texts, chat, stream, logprob_of):
    engine, url, sampled = texts
    encode = lambda text: chat.vocabulary.encode(text)[0]  # noqa: E731
    first = "user says "
    answer = httpx.post(f"{url}/generate", json={"text": first, "stream": stream})
    assert answer.status_code == 200
    assert engine.bodies[0] == {"input_ids": encode(first), "stream": stream}
    # The harness goes on with the text, and spells the stop itself.
    second = first + "hello<|im_end|>" + "and then "
    httpx.post(f"{url}/generate", json={"text": second, "stream": stream})
    assert engine.bodies[1]["input_ids"] == encode(first) + sampled + encode("and then ")
    # Without the stop, there is none.
    httpx.post(f"{url}/generate", json={"text": first + "hello there"})
    assert engine.bodies[2]["input_ids"] == encode(first) + sampled[:-1] + encode(" there")
    told = httpx.post(f"{url}/retrieve_from_text", json={"text": second + "hello"}).json()
    assert told["tokens"] == engine.bodies[1]["input_ids"] + sampled[:-1]
    ones = [0] * len(encode(first)) + [1] * len(sampled) + [0] * len(encode("and then ")) + [1] * (len(sampled) - 1)
    assert told["loss_mask"] == ones
    pairs = zip(told["tokens"], told["loss_mask"], told["logprobs"], strict=True)
    assert all(logprob == (logprob_of(token) if mask else None) for token, mask, logprob in pairs)


def test_requests_that_bring_ids_or_ask_for_several_answers_pass_unchanged(texts):
    engine, url, _ = texts
    bodies = [
        {"input_ids": [1, 2]},
        {"text": ["a", "b"]},
        {"text": "a", "sampling_params": {"n": 2}},
        {"text": "a", "image_data": ["x"]},
    ]
    for body in bodies:
        assert httpx.post(f"{url}/generate", json=body).status_code == 200
    assert engine.bodies == bodies
    assert httpx.post(f"{url}/retrieve_from_text", json={"text": 3}).status_code == 400
