"""Exact tokens for harnesses that speak text: what was sampled is sent back as the ids that were sampled."""

from collections.abc import Callable
from typing import Any, Literal

import orjson
from pydantic import Field
from tokenizers import Tokenizer

from miles_core.config import Config
from miles_core.errors import ConfigError
from miles_router.answers import Receive, Scope, Send, send_error
from miles_router.middleware.token_record import TokenPiece, TokenRecord, TokenRecords, columns

Encode = Callable[[str, bool], list[int]]


class PrefixTokensConfig(Config):
    """For callers of `/generate` that send `text`: the part of it that was sampled or sent before goes to the engine as
    the ids it had then, only the rest is tokenized; `POST /retrieve_from_text` gives the ids of a text with their mask
    and log-probabilities."""

    type: Literal["prefix_tokens"] = "prefix_tokens"
    model_dir: str
    """Folder with the model's `tokenizer.json`."""
    max_mib: int = Field(default=256, gt=0)
    """Memory for texts and their ids; what was not used for longest is forgotten first."""
    body_limit_bytes: int = Field(default=64 << 20, gt=0)
    """Largest body that is read; a larger one is answered 413."""

    def build(self, app: Any) -> Any:
        """The middleware around `app`; ConfigError when the tokenizer cannot be read."""
        try:
            tokenizer = Tokenizer.from_file(f"{self.model_dir}/tokenizer.json")
        except Exception as error:  # the library raises Exception itself
            raise ConfigError(f"{self.model_dir}: expected a folder with tokenizer.json ({error}).") from error

        def encode(text: str, at_start: bool) -> list[int]:
            ids: list[int] = tokenizer.encode(text, add_special_tokens=at_start).ids
            return ids

        def spelling(token: int) -> str:
            return tokenizer.id_to_token(token) or ""

        return PrefixTokens(app, self, encode=encode, spelling=spelling)


class PrefixTokens:
    """See its config. encode: ids of a text, with the model's own start tokens or without. spelling: of a token."""

    def __init__(self, app: Any, config: PrefixTokensConfig, *, encode: Encode, spelling: Callable[[int], str]) -> None:
        self._app = app
        self._config = config
        self._encode = encode
        self._spelling = spelling
        self._records = TokenRecords(max_bytes=config.max_mib << 20)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["method"] != "POST" or scope["path"] not in ("/generate", "/retrieve_from_text"):
            await self._app(scope, receive, send)
            return
        try:
            body = await _read(receive, self._config.body_limit_bytes)
        except ConnectionError:
            return
        if body is None:
            await send_error(send, 413, f"expected a body of at most {self._config.body_limit_bytes} bytes.")
            return
        request = _json_object(body)
        if scope["path"] == "/retrieve_from_text":
            await self._retrieve(request, send)
        elif _speaks_text(request):
            await self._generate(request, scope, receive, send)
        else:
            await self._app(scope, _replay(body, receive), send)

    async def _retrieve(self, request: dict[str, Any], send: Send) -> None:
        text = request.get("text")
        if not isinstance(text, str):
            await send_error(send, 400, 'expected a JSON object {"text": "..."}.')
            return
        answer = orjson.dumps(columns(self._tokens_of(text).pieces()))
        fields = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 200, "headers": fields})
        await send({"type": "http.response.body", "body": answer})

    async def _generate(self, request: dict[str, Any], scope: Scope, receive: Receive, send: Send) -> None:
        text: str = request.pop("text")
        prompt = self._tokens_of(text)
        request["input_ids"] = [token for piece in prompt.pieces() for token in piece.ids]
        body = orjson.dumps(request)
        headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
        headers.append((b"content-length", b"%d" % len(body)))
        seen = _Seen(send)
        await self._app({**scope, "headers": headers}, _replay(body, receive), seen.send)
        self._records.add(text, prompt)
        answer = seen.last_answer()
        if answer is not None:
            self._remember(text, prompt, answer)

    def _tokens_of(self, text: str) -> TokenRecord:
        """The text's ids: as recorded as far as they are, tokenized from there on."""
        record, rest = self._records.longest(text)
        if record is not None and not rest:
            return record
        return TokenRecord(record, TokenPiece(tuple(self._encode(rest, record is None)), sampled=False))

    def _remember(self, text: str, prompt: TokenRecord, answer: dict[str, Any]) -> None:
        """Record what was sampled under the text that it makes, and under the text that also spells its stop."""
        said, ids, meta = answer.get("text"), answer.get("output_ids"), answer.get("meta_info")
        if not isinstance(said, str) or not isinstance(ids, list) or not isinstance(meta, dict) or not ids:
            return
        if meta.get("completion_tokens") != len(ids):  # a delta of a stream, not the whole
            return
        told = meta.get("output_token_logprobs")
        logprobs = tuple(entry[0] for entry in told) if isinstance(told, list) and len(told) == len(ids) else None
        whole = TokenRecord(prompt, TokenPiece(tuple(ids), True, logprobs))
        stop = (meta.get("finish_reason") or {}).get("matched")
        if stop != ids[-1] or said.endswith(self._spelling(ids[-1])):
            self._records.add(text + said, whole)
            return
        # The engine's text leaves out the stop that was sampled. A text that goes on with it has all ids.
        kept = TokenPiece(tuple(ids[:-1]), True, logprobs[:-1] if logprobs is not None else None)
        self._records.add(text + said, TokenRecord(prompt, kept))
        self._records.add(text + said + self._spelling(ids[-1]), whole)


class _Seen:
    """Passes an answer on and keeps what is needed to read its end."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._status = 0
        self._streams = False
        self._data = b""
        self._whole = False

    async def send(self, message: dict[str, Any]) -> None:
        """One ASGI message."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._streams = (b"content-type", b"text/event-stream") in [
                (name, value.partition(b";")[0]) for name, value in message["headers"]
            ]
        elif self._status == 200:
            self._data += message.get("body", b"")
            self._whole = not message.get("more_body", False)
            if self._streams and (cut := self._data.rfind(b"\n\n", 0, -2)) >= 0:
                # Of a stream only the last whole event counts, and the mark of its end.
                before = self._data.rfind(b"\n\n", 0, cut)
                self._data = self._data[before + 2 if before >= 0 else 0 :]
        await self._send(message)

    def last_answer(self) -> dict[str, Any] | None:
        """The answer's object, or the last one of its stream; None when it failed or broke off."""
        if not self._whole or self._status != 200:
            return None
        if not self._streams:
            return _json_object(self._data) or None
        events = [event.removeprefix(b"data: ") for event in self._data.split(b"\n\n") if event.startswith(b"data: ")]
        objects = [found for event in events if event != b"[DONE]" and (found := _json_object(event))]
        return objects[-1] if objects else None


async def _read(receive: Receive, limit_bytes: int) -> bytes | None:
    """The whole body; None when it is larger. ConnectionError when the caller leaves."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionResetError("the caller left before its request was read.")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit_bytes:
            return None
        if not message.get("more_body", False):
            return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body that was read, then what follows it."""
    given = False

    async def again() -> Any:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _json_object(data: bytes) -> dict[str, Any]:
    """The object; an empty one when it is none."""
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _speaks_text(request: dict[str, Any]) -> bool:
    """Whether one text is to be continued once, by nothing but itself."""
    parameters = request.get("sampling_params")
    samples = parameters.get("n", 1) if isinstance(parameters, dict) else 1
    others = any(request.get(name) for name in ("input_ids", "input_embeds", "image_data", "audio_data", "video_data"))
    return isinstance(request.get("text"), str) and samples == 1 and not others
