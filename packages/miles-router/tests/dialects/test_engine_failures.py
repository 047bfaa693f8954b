"""What an engine says when it fails, in whatever shape, reaches the caller in its dialect with the engine's status."""

import json

import pytest

HELLO = ("user", "hello there")
SHAPES = {
    "OpenAI's": (b'{"error": {"message": "no room", "type": "x", "code": 1}}', "no room"),
    "a message": (b'{"object": "error", "message": "no room", "code": 400}', "no room"),
    "a text": (b"no room", "the engine answered 429: no room"),
    "other JSON": (b"[1]", "the engine answered 429: [1]"),
    "nothing": (b"", "the engine answered 429: "),
}


class FailingEngine:
    """Answers `/generate` with 429, a body and `Retry-After`."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "lifespan":
            for kind in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{kind}.complete"})
            return
        failing = scope["path"] == "/generate"
        body = self._body if failing else json.dumps({"context_length": 4096}).encode()
        headers = [(b"content-length", str(len(body)).encode()), (b"retry-after", b"7")]
        await send({"type": "http.response.start", "status": 429 if failing else 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@pytest.mark.parametrize(("body", "says"), list(SHAPES.values()), ids=list(SHAPES))
def test_a_failure_of_the_engine_is_told_in_the_dialect(bench, talk, speaker, body, says):
    answer = talk(bench.serve(FailingEngine(body))).post(speaker, speaker.body([HELLO]))
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
    if speaker.name != "anthropic" and b'"error":' in body:
        assert answer.content == body
    else:
        kind, message = speaker.failure(answer.json())
        assert (kind, message) == ("rate_limit_error", says)
