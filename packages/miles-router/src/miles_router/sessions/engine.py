"""The engine as the session server sees it: token ids in, token ids with their log-probabilities out."""

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from miles_core.errors import EngineError
from miles_router.versions import weight_version


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What the engine sampled in one turn: all arrays are per id, log-probabilities natural.

    finish: "stop" or "length". matched: the stop id or text. counters: numbers of `meta_info`.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    weight_versions: tuple[int, ...]
    finish: str
    matched: int | str | None = None
    cached_tokens: int = 0
    counters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Piece:
    """Ids that a stream added, with their log-probabilities."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


class EngineAnswerError(EngineError):
    """An answer other than 200, to be passed on as it is."""

    def __init__(self, status: int, body: bytes, content_type: str, retry_after: str | None = None) -> None:
        super().__init__(f"the engine answered {status}: {body[:300].decode(errors='replace')}", status=status)
        self.body = body
        self.content_type = content_type
        self.retry_after = retry_after


class EngineClient:
    """Calls `/generate` and `/model_info` at one base URL. `close` ends its connections."""

    def __init__(self, url: str, *, token: str | None, silence_s: float) -> None:
        self._url = url
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

    async def context_length(self) -> int | None:
        """`context_length` of `/model_info` or `/server_info`, None when neither tells."""
        for path in ("/model_info", "/server_info"):
            async with self._calling(), self._session.get(self._url + path) as answer:
                if answer.status == 503:
                    raise EngineAnswerError(503, await answer.read(), answer.content_type, "1")
                info = orjson.loads(await answer.read()) if answer.status == 200 else {}
            length = info.get("context_length") if isinstance(info, dict) else None
            if isinstance(length, int) and length > 0:
                return length
        return None

    async def generate(self, body: Mapping[str, Any], *, routing_key: str) -> Generation:
        """One whole answer. EngineAnswerError passes a status on; EngineError 502 or 504 says what was wrong."""
        async with self._calling(), self._post(body, routing_key) as answer:
            await _check_status(answer)
            return finished(read_generation(_json(await answer.read())))

    async def stream(self, body: Mapping[str, Any], *, routing_key: str) -> AsyncIterator[Piece | Generation]:
        """Pieces of the answer as the engine sends them, then the whole of it."""
        seen: list[int] = []
        last: Any = None
        async with self._calling(), self._post({**body, "stream": True}, routing_key) as answer:
            await _check_status(answer)
            async for data in _events(answer.content):
                if data == b"[DONE]":
                    break
                last = _json(data)
                piece = read_piece(last, len(seen))
                seen += piece.ids
                yield piece
        if last is None:
            raise EngineError("the engine ended its stream without a token.", status=502)
        generation = finished(read_generation(last))
        if list(generation.ids) != seen:
            raise EngineError("the engine's stream is not cumulative: earlier output_ids changed.", status=502)
        yield generation

    def _post(self, body: Mapping[str, Any], routing_key: str) -> Any:
        headers = {"X-SMG-Routing-Key": routing_key}
        return self._session.post(f"{self._url}/generate", data=orjson.dumps(body), headers=headers)

    def _calling(self) -> "_Faults":
        return _Faults(self._url, self._silence_s)


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
    if answer.status != 200:
        raise EngineAnswerError(
            answer.status, await answer.read(), answer.content_type, answer.headers.get("Retry-After")
        )


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


def read_generation(answer: Any) -> Generation:
    """Check an answer of `/generate` and take what a turn needs; EngineError 502 when tokens cannot be proved."""
    piece = read_piece(answer, 0)
    meta = answer["meta_info"]
    finish, matched = _finish(meta.get("finish_reason"))
    return Generation(
        ids=piece.ids,
        logprobs=piece.logprobs,
        weight_versions=_versions(len(piece.ids), meta),
        finish=finish,
        matched=matched,
        cached_tokens=meta["cached_tokens"] if isinstance(meta.get("cached_tokens"), int) else 0,
        counters={k: v for k, v in meta.items() if isinstance(v, int | float) and not isinstance(v, bool)},
    )


def read_piece(answer: Any, start: int) -> Piece:
    """The checked output ids from `start` on, with their log-probabilities."""
    if isinstance(answer, dict) and "error" in answer:
        raise EngineError(f"the engine reports: {answer['error']}.", status=502)
    if not isinstance(answer, dict) or not isinstance(answer.get("meta_info"), dict):
        raise EngineError("expected an object with meta_info from the engine, found something else.", status=502)
    meta = answer["meta_info"]
    _finish(meta.get("finish_reason"))
    ids = answer.get("output_ids")
    entries = meta.get("output_token_logprobs") or []
    if not isinstance(ids, list) or not all(type(i) is int for i in ids[start:]):
        raise EngineError("expected output_ids as a list of integers from the engine.", status=502)
    if not isinstance(entries, list) or len(entries) != len(ids):
        raise EngineError(
            f"expected one log-probability per output id, found {len(entries)} for {len(ids)} ids.", status=502
        )
    return Piece(tuple(ids[start:]), _logprobs(ids[start:], entries[start:]))


def finished(generation: Generation) -> Generation:
    """The generation, or EngineError 502 when it broke off or holds no token."""
    if not generation.finish:
        raise EngineError("the engine ended its answer without a finish reason.", status=502)
    if not generation.ids:
        raise EngineError("the engine answered without a token.", status=502)
    return generation


def _finish(reason: Any) -> tuple[str, int | str | None]:
    if reason is None:
        return "", None
    kind = reason.get("type") if isinstance(reason, dict) else reason
    if kind == "abort":
        message = reason.get("message") if isinstance(reason, dict) else None
        raise EngineError(f"the engine aborted the answer: {message or 'no reason given'}.", status=502)
    if kind not in ("stop", "length"):
        raise EngineError(f"expected a finish reason among stop, length, abort, found {kind!r}.", status=502)
    return kind, reason.get("matched") if isinstance(reason, dict) else None


def _logprobs(ids: Sequence[int], entries: Sequence[Any]) -> tuple[float, ...]:
    values = []
    for token, entry in zip(ids, entries, strict=True):
        value = entry[0] if isinstance(entry, list) and len(entry) >= 2 and entry[1] == token else None
        if not isinstance(value, float | int) or not math.isfinite(value) or value > 1e-6:
            raise EngineError(f"expected [log-probability, {token}, ...] from the engine, found {entry!r}.", status=502)
        values.append(float(value))
    return tuple(values)


def _versions(count: int, meta: Mapping[str, Any]) -> tuple[int, ...]:
    runs = meta.get("token_weight_versions")
    if runs is None:
        runs = [[meta.get("weight_version"), count]]
    versions: list[int] = []
    for run in runs:
        version = weight_version(run[0]) if isinstance(run, list) and len(run) == 2 else None
        if version is None or not isinstance(run[1], int):
            raise EngineError(f"expected the weight version of the tokens as a number, found {run!r}.", status=502)
        versions += [version] * run[1]
    if len(versions) != count:
        raise EngineError(f"expected weight versions of {count} tokens, found {len(versions)}.", status=502)
    return tuple(versions)
