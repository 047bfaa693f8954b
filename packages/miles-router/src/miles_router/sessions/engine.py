"""The engine as the session server sees it: token ids in, token ids with their log-probabilities out."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import orjson

from miles_core.errors import EngineError
from miles_router.sessions.config import SessionServerConfig
from miles_router.sessions.experts import ExpertsFormat, experts_format
from miles_router.sessions.generation import Generation, Piece, finished, read_generation, read_piece

LARGE_ANSWER_BYTES = 1 << 20
"""An answer of this size is read in a thread."""


class EngineAnswerError(EngineError):
    """An answer other than 200, to be passed on as it is."""

    def __init__(self, status: int, body: bytes, content_type: str, retry_after: str | None = None) -> None:
        super().__init__(f"the engine answered {status}: {body[:300].decode(errors='replace')}", status=status)
        self.body = body
        self.content_type = content_type
        self.retry_after = retry_after


class EngineClient:
    """Calls `/generate` and what reports about an engine at one base URL. `close` ends its connections.

    experts: how the engine writes routed experts, which are then asked for; None asks for none.
    """

    def __init__(self, url: str, *, token: str | None, silence_s: float, experts: ExpertsFormat | None = None) -> None:
        self._url = url
        self._experts = experts
        self._silence_s = silence_s
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=silence_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={**headers, "content-type": "application/json"},
            read_bufsize=1 << 20,
        )

    async def close(self) -> None:
        """End all connections."""
        await self._session.close()

    async def info(self, path: str) -> Mapping[str, Any]:
        """The object that the engine answers at `path`, empty when it has none there."""
        async with self._calling(), self._session.get(self._url + path, allow_redirects=False) as answer:
            if answer.status == 503:
                raise EngineAnswerError(503, await answer.read(), answer.content_type, "1")
            info = orjson.loads(await answer.read()) if answer.status == 200 else {}
        return info if isinstance(info, dict) else {}

    async def generate(self, body: Mapping[str, Any], *, routing_key: str, first_row: int = 0) -> Generation:
        """One whole answer. EngineAnswerError passes a status on; EngineError 502 or 504 says what was wrong.

        first_row: the first position whose experts are kept.
        """
        async with self._calling(), self._post(body, routing_key) as answer:
            await _check_status(answer)
            return finished(await self._read(await answer.read(), body, first_row))

    async def stream(
        self, body: Mapping[str, Any], *, routing_key: str, first_row: int = 0
    ) -> AsyncIterator[Piece | Generation]:
        """Pieces of the answer as the engine sends them, then the whole of it.

        An engine that names one version an event gives each id the version of the event that brought it.
        """
        seen: list[int] = []
        versions: list[int] = []
        last = b""
        async with self._calling(), self._post({**body, "stream": True}, routing_key) as answer:
            await _check_status(answer)
            async for data in _events(answer.content):
                if data == b"[DONE]":
                    break
                last = data
                piece = read_piece(_json(data), len(seen))
                seen += piece.ids
                if piece.version is not None:
                    versions += [piece.version] * len(piece.ids)
                yield piece
        if not last:
            raise EngineError("the engine ended its stream without a token.", status=502)
        generation = finished(
            await self._read(last, body, first_row, versions=versions if len(versions) == len(seen) else None)
        )
        if list(generation.ids) != seen:
            raise EngineError("the engine's stream is not cumulative: earlier output_ids changed.", status=502)
        yield generation

    async def _read(
        self, data: bytes, body: Mapping[str, Any], first_row: int, *, versions: list[int] | None = None
    ) -> Generation:
        def read() -> Generation:
            return read_generation(
                _json(data),
                experts=self._experts,
                first_row=first_row,
                prompt_tokens=len(body["input_ids"]),
                versions=versions,
            )

        # Routed experts of a long prompt are megabytes; other sessions go on while they are decoded.
        return await asyncio.to_thread(read) if len(data) > LARGE_ANSWER_BYTES else read()

    def _post(self, body: Mapping[str, Any], routing_key: str) -> Any:
        headers = {"X-SMG-Routing-Key": routing_key}
        if self._experts is not None:
            body = {**body, "return_routed_experts": True}
        return self._session.post(
            f"{self._url}/generate",
            data=orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY),
            headers=headers,
            allow_redirects=False,  # would make a GET of it, at any host
        )

    def _calling(self) -> "_Faults":
        return _Faults(self._url, self._silence_s)


def engine_client(config: SessionServerConfig) -> EngineClient:
    """The client that a server's options ask for; ConfigError when its experts cannot be told apart."""
    experts = None
    if config.return_routed_experts:
        experts = experts_format(config.model_dir, top_k=config.experts_top_k, dtype=config.experts_dtype)
    return EngineClient(
        config.engine_url, token=config.engine_token, silence_s=config.answer_timeout_s, experts=experts
    )


class _Faults:
    """Turns failures of the transport into EngineError."""

    def __init__(self, url: str, silence_s: float) -> None:
        self._url = url
        self._silence_s = silence_s

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, aiohttp.ServerTimeoutError):
            raise EngineError(f"waited {self._silence_s:g} s for the engine at {self._url}.", status=504) from error
        if isinstance(error, aiohttp.ClientError | ValueError):
            raise EngineError(
                f"the engine at {self._url} failed: {type(error).__name__}: {error}.", status=502
            ) from error


async def _check_status(answer: aiohttp.ClientResponse) -> None:
    status = answer.status
    if status == 200:
        return
    if not 400 <= status <= 599:
        raise EngineError(f"expected the status 200 or one of a failure from the engine, found {status}.", status=502)
    retry_after = _text(answer.headers.get("Retry-After"))
    raise EngineAnswerError(
        status, await answer.read(), _text(answer.content_type) or "application/octet-stream", retry_after
    )


def _text(value: str | None) -> str | None:
    """A field that may be sent on; None for what is no printable ASCII."""
    return value if value and value.isascii() and value.isprintable() else None


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """The data of each server-sent event. Lines are put together here: they may pass the reader's own limit."""
    rest = b""
    async for piece in content.iter_any():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()


def _json(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise EngineError(f"the engine sent an answer that is not JSON: {error}.", status=502) from error
