"""One call under every order of events: its caller is answered once, its place and its connections are given back."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from miles_router.config import RouterConfig
from miles_router.connection import Connection
from miles_router.metrics import RouterMetrics
from miles_router.pool import Pool
from miles_router.proxy import Proxy
from miles_router.upstream import ConnectError, Origin, Upstream

ANSWERS = [
    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\no",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n\r\nuntil the end",
    b"HTTP/1.1 200 OK\r\ncontent-length: 90000\r\n\r\nlarge",
    b"HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"3\r\nabc\r\n",
    b"0\r\n\r\n",
    b"garbage\r\n\r\n",
    b"",
]


class Wire:
    """A transport that goes nowhere; an aborted one tells its protocol so, as loops do, a moment later."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.closed = False
        self.written = b""
        connection.connection_made(self)

    def write(self, data: bytes) -> None:
        self.written += data

    def abort(self) -> None:
        self.lose()

    def lose(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Wires(Upstream):
    """Connects to nothing, or refuses."""

    def __init__(self) -> None:
        super().__init__(connect_s=1.0)
        self.wires: list[Wire] = []
        self.refuse = False

    async def connect(self, origin: Origin) -> Connection:
        await asyncio.sleep(0)
        if self.refuse:
            raise ConnectError("refused")
        connection = Connection()
        self.wires.append(Wire(connection))
        return connection


class Answered:
    """A caller that checks how it is answered."""

    def __init__(self) -> None:
        self.begun = self.ended = False
        self.body = b""
        self.status = 0
        self.length: int | None = None

    def begin(self, status, headers, length) -> None:
        assert not self.begun
        self.begun, self.status, self.length = True, status, length

    def write(self, data: bytes, *, last: bool) -> None:
        assert self.begun
        assert not self.ended
        self.body += data
        self.ended = last
        if last and self.length is not None:
            assert len(self.body) == self.length

    def broken(self) -> None:
        assert self.begun
        assert not self.ended
        self.ended = True

    def hold(self) -> None:
        pass

    def carry_on(self) -> None:
        pass


WHAT = st.one_of(
    st.sampled_from(ANSWERS),
    st.sampled_from(["lose", "slow", "fast", "body", "silence", "refuse", "accept", "wait", "quarantine"]),
    st.sampled_from(["gone", "too large"]),
)
EVENTS = st.lists(st.tuples(st.integers(0, 4), WHAT), max_size=12)
"""How many turns of the loop go by, and what happens then."""


async def play(events: list[tuple[int, bytes | str]], *, whole: bool) -> None:
    pool = Pool()
    for name in ("http://a", "http://b"):
        pool.probe_succeeded(pool.add(name), 0)
    upstream = Wires()
    config = RouterConfig(queue_timeout_s=0.01)
    proxy = Proxy(pool, config, RouterMetrics(pool), upstream)
    caller = Answered()
    exchange = proxy.exchange(caller, b"POST", b"/generate", [(b"x-a", b"1")])
    exchange.start(b"{}", length=None, complete=whole)
    gone = last = False
    for turns, event in events:
        for _ in range(turns):
            await asyncio.sleep(0)
        wire = next((w for w in upstream.wires if w.connection.reader is exchange and not w.closed), None)
        if isinstance(event, bytes):
            if wire is not None:
                wire.connection.data_received(event)
        elif event == "lose" and wire is not None:
            wire.lose()
        elif event == "slow":
            exchange.caller_is_slow()
        elif event == "fast":
            exchange.caller_reads_on()
        elif event == "body" and not whole and not last:
            exchange.more_body(b"more", last=False)
        elif event == "silence":
            exchange.check_silence(asyncio.get_running_loop().time() + 1000, 1.0)
        elif event in ("refuse", "accept"):
            upstream.refuse = event == "refuse"
        elif event == "quarantine":
            pool.quarantine("http://a", "test")
            pool.quarantine("http://b", "test")
        elif event == "wait":
            await asyncio.sleep(0.02)
        elif event == "too large" and not whole and not caller.ended and not gone:
            exchange.refuse(413, "too large")
            last = True
        elif event == "gone":
            gone = True
            exchange.caller_gone()
        # A call counts as long as it is not over, and no longer.
        assert sum(worker.active for worker in pool.workers) <= (0 if caller.ended or gone else 1)
    exchange.caller_gone()
    for _ in range(8):
        await asyncio.sleep(0)
    assert all(worker.active == 0 for worker in pool.workers)
    assert pool.waiting == 0
    assert not proxy._active
    assert not [w for w in upstream.wires if w.connection.reader is not None]
    kept = [connection for row in upstream._idle.values() for connection in row]
    assert all(w.closed or w.connection in kept for w in upstream.wires)
    samples = [sample for metric in proxy.metrics.answers.collect() for sample in metric.samples]
    assert sum(sample.value for sample in samples if sample.name.endswith("_total")) == 1


@given(EVENTS, st.booleans())
@settings(max_examples=400, deadline=None)
def test_whatever_happens_the_caller_is_answered_once_and_nothing_is_kept(events, whole):
    asyncio.run(play(events, whole=whole))
