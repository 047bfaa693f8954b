"""The data path: one ASGI request in, one worker's answer out, untouched."""

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

from miles_router.answers import Receive, Scope, Send, send_error
from miles_router.body import BodyTooLargeError, ClientGoneError, RequestBody
from miles_router.config import RouterConfig
from miles_router.headers import ANSWER_DROPS, REQUEST_DROPS, Field, passed_on
from miles_router.metrics import RouterMetrics
from miles_router.pool import Lease, NoWorkerError, Pool
from miles_router.upstream import Answer, ConnectError, NoAnswerError, Origin, SilentError, Upstream, UpstreamError

log = logging.getLogger(__name__)

WHOLE_BYTES = 1 << 16
"""Answers of a known length up to this are passed on in one piece."""

WORKER_FAULTS = frozenset({500, 502, 504})
"""Statuses that count against a worker; 503 is an honest sign of load."""


class NeverStartedError(Exception):
    """A worker gave no byte of an answer; another one may be asked."""


class AnswerFailedError(Exception):
    """A worker failed in a way that must not be retried, before the caller saw a byte."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class _Call:
    """One proxied request and how far its answer got."""

    scope: Scope
    send: Send
    body: RequestBody
    headers: list[Field]
    target: bytes
    status: int = 0
    started: bool = False
    """True once a byte of the answer went to the caller."""


class Proxy:
    """Forwards calls to the pool's workers. Owns no connection: `upstream` belongs to the app."""

    def __init__(self, pool: Pool, config: RouterConfig, metrics: RouterMetrics, upstream: Upstream) -> None:
        self._pool = pool
        self._config = config
        self._metrics = metrics
        self._upstream = upstream
        self._origins: dict[str, Origin] = {}
        self._drop_authorization = config.token is not None or config.worker_token is not None
        bearer = f"Bearer {config.worker_token}".encode()
        self._worker_headers = [(b"authorization", bearer)] if config.worker_token is not None else []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward one request, and end the worker's side of it as soon as the caller leaves."""
        config = self._config
        body = RequestBody(receive, keep_bytes=config.replay_bytes, limit_bytes=config.body_limit_bytes)
        call = _Call(scope, send, body, self._request_headers(scope), _target(scope))
        try:
            await body.fill()
            await self._watched(call, receive)
        except ClientGoneError:
            call.status = 0
        except BodyTooLargeError as error:
            await self._refuse(call, 413, str(error))
        finally:
            self._metrics.answers.labels(call.status).inc()

    async def _watched(self, call: _Call, receive: Receive) -> None:
        forward = asyncio.current_task()
        gone = False

        async def watch() -> None:
            nonlocal gone
            # Until then it is the body's reader that notices.
            await call.body.end.wait()
            while (await receive())["type"] != "http.disconnect":
                pass
            gone = True
            if forward is not None:
                forward.cancel()

        watcher = asyncio.create_task(watch())
        try:
            await self._forward(call)
        except asyncio.CancelledError:
            if not gone or forward is None or forward.uncancel() > 0:
                raise
            raise ClientGoneError("the caller left before its answer was complete.") from None
        finally:
            watcher.cancel()

    async def _forward(self, call: _Call) -> None:
        tried: set[str] = set()
        for attempt in range(1, self._config.max_attempts + 1):
            try:
                lease = await self._lease(tried)
            except NoWorkerError as error:
                await self._refuse(call, 503, str(error), {"Retry-After": "1"})
                return
            try:
                await self._exchange(call, lease)
            except NeverStartedError as error:
                tried.add(lease.worker.url)
                if attempt == self._config.max_attempts or call.body.streamed:
                    await self._refuse(call, 502, f"no worker answered after {attempt} attempts: {error}.")
                    return
                self._metrics.retries.inc()
            except AnswerFailedError as error:
                await self._refuse(call, error.status, str(error))
                return
            else:
                return
            finally:
                lease.release()

    async def _lease(self, tried: set[str]) -> Lease:
        if lease := (self._pool.try_acquire(tried) if tried or not self._pool.waiting else None):
            return lease
        with self._metrics.wait.time():
            return await self._pool.acquire(timeout_s=self._config.queue_timeout_s)

    async def _exchange(self, call: _Call, lease: Lease) -> None:
        """Send the request to the leased worker and pass its answer on."""
        url = lease.worker.url
        origin = self._origins.get(url)
        if origin is None:
            origin = self._origins[url] = Origin.of(url)
        try:
            answer = await self._upstream.request(
                call.scope["method"], origin, call.target, headers=call.headers, body=call.body
            )
        except UpstreamError as error:
            raise self._fault(call, lease, error) from error
        try:
            await self._pass_on(call, answer, lease)
        finally:
            await answer.close()

    def _fault(self, call: _Call, lease: Lease, error: UpstreamError) -> Exception:
        """What it means that the worker gave no head of an answer, and whose fault it is."""
        url = lease.worker.url
        if call.body.error is not None:
            return call.body.error
        lease.failed(f"{type(error).__name__}: {error}", fatal=isinstance(error, ConnectError))
        if isinstance(error, ConnectError):
            return NeverStartedError(f"{url} could not be reached ({error})")
        if isinstance(error, NoAnswerError):
            return NeverStartedError(f"{url} closed the connection before it answered ({error})")
        if isinstance(error, SilentError):
            return AnswerFailedError(504, f"waited {self._config.idle_timeout_s:g} s for {url} to answer.")
        return AnswerFailedError(502, f"{url} sent a malformed answer: {error}.")

    async def _pass_on(self, call: _Call, answer: Answer, lease: Lease) -> None:
        headers = passed_on(answer.headers, ANSWER_DROPS)
        start = {"type": "http.response.start", "status": answer.status, "headers": headers}
        try:
            if answer.length is not None and answer.length <= WHOLE_BYTES:
                await self._pass_whole(call, answer, start)
            else:
                await self._pass_stream(call, answer, start)
        except UpstreamError as error:
            lease.failed(f"answer broke off: {error}")
            if not call.started:
                raise AnswerFailedError(502, f"{lease.worker.url} broke off its answer: {error}.") from error
            self._metrics.cut.inc()
            # Returning without the last body message makes the server cut the connection, so that the caller can tell
            # a broken answer from a complete one.
            log.warning("%s broke off an answer that had started: %s", lease.worker.url, error)
            call.status = answer.status
            return
        call.status = answer.status
        if answer.status in WORKER_FAULTS:
            lease.failed(f"answered {answer.status}")
        else:
            lease.succeeded()

    async def _pass_whole(self, call: _Call, answer: Answer, start: dict[str, Any]) -> None:
        body = await answer.read()
        if call.scope["method"] != "HEAD" and answer.status not in (204, 304):
            start["headers"].append((b"content-length", b"%d" % len(body)))
        call.started = True
        await call.send(start)
        await call.send({"type": "http.response.body", "body": body})

    async def _pass_stream(self, call: _Call, answer: Answer, start: dict[str, Any]) -> None:
        call.started = True
        await call.send(start)
        async for piece in answer.pieces():
            await call.send({"type": "http.response.body", "body": piece, "more_body": True})
        await call.send({"type": "http.response.body", "body": b""})

    def _request_headers(self, scope: Scope) -> list[Field]:
        headers = passed_on(scope["headers"], REQUEST_DROPS)
        if self._drop_authorization:
            # The caller's proof for this server is not shown to the workers.
            headers = [field for field in headers if field[0] != b"authorization"]
        return headers + self._worker_headers

    async def _refuse(self, call: _Call, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        call.status = status
        if not call.started:
            call.started = True
            await send_error(call.send, status, message, headers)


def _target(scope: Scope) -> bytes:
    path: bytes = scope["raw_path"]
    query: bytes = scope["query_string"]
    return path + b"?" + query if query else path
