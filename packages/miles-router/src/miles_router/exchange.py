"""One proxied call: a worker is chosen, asked, and its answer passed on, piece by piece as it comes.

It is a state machine that the two connections drive, without a task of its own unless it has to wait for a worker or a
connection: `bench/router.py` measures why.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from miles_core.errors import MilesError
from miles_router.answers import error_answer
from miles_router.connection import Connection
from miles_router.facts import RequestFacts
from miles_router.headers import ANSWER_DROPS, Field, passed_on
from miles_router.pool import Lease, NoWorkerError
from miles_router.upstream import ConnectError, Origin, request_head

if TYPE_CHECKING:
    from miles_router.proxy import Proxy

log = logging.getLogger(__name__)

WHOLE_BYTES = 1 << 16
"""Answers of a known length up to this are passed on in one piece, so that one that breaks off can still be 502."""

WORKER_FAULTS = frozenset({500, 502, 504})
"""Statuses that count against a worker; 503 is an honest sign of load."""


class Caller(Protocol):
    """Who is answered. Exactly one of `write(..., last=True)` and `broken` ends the answer."""

    def begin(self, status: int, headers: Sequence[Field], length: int | None) -> None:
        """The head of the answer. length: of the body, None when it is not known."""

    def write(self, data: bytes, *, last: bool) -> None:
        """A piece of the body, which may be empty."""

    def broken(self) -> None:
        """The answer ends before its end, and must not look whole."""

    def hold(self) -> None:
        """Read no more of the request's body for now."""

    def carry_on(self) -> None:
        """Read on."""


class Exchange:
    """One call and how far it got. Its owner calls `start`, then `more_body` for a body that is streamed up."""

    __slots__ = (
        "_attempts",
        "_begun",
        "_caller",
        "_connection",
        "_ended",
        "_facts",
        "_headers",
        "_lease",
        "_length",
        "_method",
        "_more",
        "_origin",
        "_proxy",
        "_sent_all",
        "_streamed",
        "_target",
        "_task",
        "_tried",
        "_whole",
    )

    def __init__(self, proxy: "Proxy", caller: Caller, method: bytes, target: bytes, headers: Sequence[Field]) -> None:
        self._proxy = proxy
        self._caller = caller
        self._method = method
        self._target = target
        self._headers = headers
        self._facts = RequestFacts(target, headers)
        self._lease: Lease | None = None
        self._connection: Connection | None = None
        self._origin: Origin | None = None
        self._task: asyncio.Task[None] | None = None
        self._tried: tuple[str, ...] = ()
        self._attempts = 0
        self._length: int | None = None
        self._more: list[bytes] = []
        """Of a streamed body: what came after its beginning and was not sent yet."""
        self._streamed = False
        """True once a body went out that is not kept, so that it cannot be sent a second time."""
        self._whole = True
        """True when the request's body was kept whole before the call began."""
        self._sent_all = False
        """True when the request's body is written to its end."""
        self._begun = False
        """True once a byte of the answer went to the caller."""
        self._ended = False

    # What the caller's side calls.

    def start(self, body: bytes, *, length: int | None, complete: bool) -> None:
        """Go. body: all of it when `complete`, else its beginning. length: of the whole, None when unknown."""
        self._facts.body = body
        self._length = len(body) if complete else length
        self._sent_all = self._whole = complete
        if not complete:
            self._caller.hold()
        self._find_worker()

    def more_body(self, data: bytes, *, last: bool) -> None:
        """The next piece of a body that is streamed up."""
        if self._ended:
            return
        piece = data if self._length is not None else b"%x\r\n%b\r\n" % (len(data), data) if data else b""
        if last and self._length is None:
            piece += b"0\r\n\r\n"
        self._sent_all = last
        if self._connection is None:
            self._more.append(piece)
        elif piece:
            self._connection.write(piece)

    def refuse(self, status: int, message: str) -> None:
        """The request turned out to be wrong while it was read."""
        self._let_go()
        self._answer(status, message)

    def caller_gone(self) -> None:
        """Nobody is there to be answered: the worker's side ends too."""
        if not self._ended:
            self._ended = True
            self._let_go()
            self._proxy.ended(self, 0)

    def caller_is_slow(self) -> None:
        """The caller does not read as fast as the worker writes."""
        if self._connection is not None:
            self._connection.pause()

    def caller_reads_on(self) -> None:
        """The caller reads again."""
        if self._connection is not None:
            self._connection.resume()

    def check_silence(self, now: float, silence_s: float) -> None:
        """End the call when its worker was silent for too long; one that is held back is not silent."""
        connection = self._connection
        if connection is None or connection.paused or now - connection.touched <= silence_s:
            return
        assert self._lease is not None
        self._lease.failed(f"silent for {silence_s:g} s")
        url = self._lease.worker.url
        self._let_go()
        if self._begun:
            self._break_off(url, f"nothing came for {silence_s:g} s")
        else:
            self._answer(504, f"waited {silence_s:g} s for {url} to answer.")

    # What the worker's connection calls.

    def progress(self) -> None:
        """More of the answer came."""
        connection = self._connection
        assert connection is not None
        complete = connection.complete
        if not self._begun:
            if not complete and connection.length is not None and connection.length <= WHOLE_BYTES:
                return
            body = connection.take()
            length = connection.length
            if complete and length is None and self._method != b"HEAD":
                length = len(body)
            self._begun = True
            status = connection.status
            if complete:
                self._settle(connection)
            self._caller.begin(status, passed_on(connection.headers, ANSWER_DROPS), length)
            self._caller.write(body, last=complete)
        else:
            body = connection.take()
            if complete:
                self._settle(connection)
            if body or complete:
                self._caller.write(body, last=complete)

    def lost(self) -> None:
        """The connection ended before the answer did."""
        connection, lease = self._connection, self._lease
        assert connection is not None
        assert lease is not None
        url, reason = lease.worker.url, connection.failure or "no answer"
        self._connection = None
        if self._begun:
            # What came before the break is the caller's.
            rest = connection.take()
            if rest:
                self._caller.write(rest, last=False)
            lease.failed(f"answer broke off: {reason}")
            self._release()
            self._break_off(url, reason)
        elif connection.received:
            lease.failed(f"answer broke off: {reason}")
            self._release()
            broke = f"{url} broke off its answer: {reason}."
            self._answer(502, broke if connection.has_head else f"{url} sent a malformed answer: {reason}.")
        else:
            # A kept connection that the worker closes in the moment it is used is nobody's fault.
            if connection.exchanges == 1:
                lease.failed(f"no answer: {reason}")
                self._tried += (url,)
            elif self._origin is not None:
                self._proxy.upstream.forget(self._origin)
            self._release()
            self._retry(f"{url} closed the connection before it answered ({reason})")

    def worker_is_slow(self) -> None:
        """Hold the upload."""
        self._caller.hold()

    def worker_reads_on(self) -> None:
        """Let the upload go on."""
        if not self._sent_all:
            self._caller.carry_on()

    # The way to a worker.

    def _find_worker(self) -> None:
        proxy = self._proxy
        self._attempts += 1
        try:
            lease = proxy.pool.try_acquire(self._tried, self._facts) if self._tried or not proxy.pool.waiting else None
        except MilesError as error:
            self._answer(500, str(error))
            return
        if lease is not None:
            self._go_to(lease)
        else:
            self._task = asyncio.create_task(self._wait_for_worker())

    async def _wait_for_worker(self) -> None:
        proxy = self._proxy
        try:
            with proxy.metrics.wait.time():
                lease = await proxy.pool.acquire(
                    timeout_s=proxy.config.queue_timeout_s, facts=self._facts, priority=proxy.priority_of(self._facts)
                )
        except NoWorkerError as error:
            self._answer(503, str(error), {"Retry-After": "1"})
        except MilesError as error:
            self._answer(500, str(error))
        else:
            self._go_to(lease)

    def _go_to(self, lease: Lease) -> None:
        self._lease = lease
        origin = self._origin = self._proxy.origin(lease.worker.url)
        # A kept connection may turn out to be closed; what cannot be sent a second time goes over a new one.
        connection = self._proxy.upstream.idle(origin) if self._whole else None
        if connection is not None:
            self._send(connection)
        else:
            self._task = asyncio.create_task(self._connect(origin))

    async def _connect(self, origin: Origin) -> None:
        lease = self._lease
        assert lease is not None
        try:
            connection = await self._proxy.upstream.connect(origin)
        except ConnectError as error:
            url = lease.worker.url
            lease.failed(f"ConnectError: {error}", fatal=True)
            self._tried += (url,)
            self._release()
            self._retry(f"{url} could not be reached ({error})")
        else:
            self._send(connection)

    def _send(self, connection: Connection) -> None:
        assert self._origin is not None
        self._connection = connection
        head = request_head(self._method, self._origin, self._target, self._headers, length=self._length)
        body = self._facts.body
        if self._length is None:
            body = b"%x\r\n%b\r\n" % (len(body), body)
        if self._more:
            body += b"".join(self._more)
            self._more = []
        self._streamed = self._streamed or not self._whole
        connection.begin(head + body, self, head_only=self._method == b"HEAD")
        if not self._sent_all:
            self._caller.carry_on()

    def _retry(self, reason: str) -> None:
        if self._streamed or self._attempts >= self._proxy.config.max_attempts:
            self._answer(502, f"no worker answered after {self._attempts} attempts: {reason}.")
            return
        self._proxy.metrics.retries.inc()
        self._find_worker()

    # The end.

    def _settle(self, connection: Connection) -> None:
        """The answer is whole: judge the worker and give back place and connection, before the caller has it."""
        assert self._lease is not None
        assert self._origin is not None
        self._ended = True
        self._connection = None
        status = connection.status
        if status in WORKER_FAULTS:
            self._lease.failed(f"answered {status}")
        else:
            self._lease.succeeded()
        if self._sent_all:
            self._proxy.upstream.keep(self._origin, connection)
        else:
            connection.cut()
        self._release()
        self._proxy.ended(self, status)

    def _break_off(self, url: str, reason: str) -> None:
        log.warning("%s broke off an answer that had started: %s", url, reason)
        self._ended = True
        self._proxy.metrics.cut.inc()
        self._proxy.ended(self, 502)
        self._caller.broken()

    def _answer(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        self._ended = True
        self._proxy.ended(self, status)
        if self._begun:
            self._caller.broken()
            return
        self._begun = True
        fields, body = error_answer(status, message, headers)
        self._caller.begin(status, fields, len(body))
        self._caller.write(body, last=True)

    def _let_go(self) -> None:
        """Cut what is under way on the worker's side."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.cut()
        if self._task is not None:
            self._task.cancel()
        self._release()

    def _release(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()
