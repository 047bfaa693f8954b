"""The data path's centre: what all exchanges of a router share."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from miles_router.config import RouterConfig
from miles_router.exchange import Caller, Exchange
from miles_router.facts import RequestFacts
from miles_router.headers import REQUEST_DROPS, Field, passed_on
from miles_router.metrics import RouterMetrics
from miles_router.pool import Pool
from miles_router.upstream import Origin, Upstream

PRIORITY = b"x-priority"
"""The header by which a call asks to be served earlier, or later, when it has to wait: a whole number, 0 without it."""

MAX_PRIORITY = 9


class Proxy:
    """Begins exchanges and watches over those under way. Owns no connection: `upstream` belongs to the app."""

    def __init__(self, pool: Pool, config: RouterConfig, metrics: RouterMetrics, upstream: Upstream) -> None:
        self.pool = pool
        self.config = config
        self.metrics = metrics
        self.upstream = upstream
        self._active: set[Exchange] = set()
        self._origins: dict[str, Origin] = {}
        self._drop_authorization = config.token is not None or config.worker_token is not None
        bearer = f"Bearer {config.worker_token}".encode()
        self._worker_headers = [(b"authorization", bearer)] if config.worker_token is not None else []

    def exchange(self, caller: Caller, method: bytes, target: bytes, headers: Sequence[Field]) -> Exchange:
        """A call that is about to start. headers: names in lower case, as they came."""
        exchange = Exchange(self, caller, method, target, self._request_headers(headers))
        self._active.add(exchange)
        return exchange

    def ended(self, exchange: Exchange, status: int) -> None:
        """An exchange is over; status 0 when its caller left."""
        self._active.discard(exchange)
        self.metrics.answered(status)

    def origin(self, url: str) -> Origin:
        """Where a worker's URL leads."""
        origin = self._origins.get(url)
        if origin is None:
            origin = self._origins[url] = Origin.of(url)
        return origin

    def priority_of(self, facts: RequestFacts) -> int:
        """What the call's `X-Priority` says, within bounds; else 1 for a short call where the config says so, or 0."""
        value = facts.header(PRIORITY)
        if value is not None:
            with suppress(ValueError):
                return max(-MAX_PRIORITY, min(MAX_PRIORITY, int(value)))
        return int(0 < len(facts.body) <= self.config.interactive_bytes)

    def sweep(self, now: float) -> None:
        """End the exchanges whose workers were silent for too long. now: by the loop's clock."""
        silence_s = self.config.idle_timeout_s
        for exchange in [*self._active]:
            exchange.check_silence(now, silence_s)

    async def run(self) -> None:
        """Watch over the exchanges; cancel to end."""
        loop = asyncio.get_running_loop()
        pause_s = min(1.0, self.config.idle_timeout_s / 8)
        while True:
            await asyncio.sleep(pause_s)
            self.sweep(loop.time())
            self.upstream.sweep()

    def close(self) -> None:
        """End everything that is under way."""
        for exchange in [*self._active]:
            exchange.caller_gone()

    def _request_headers(self, headers: Sequence[Field]) -> list[Field]:
        kept = passed_on(headers, REQUEST_DROPS)
        if self._drop_authorization:
            # The caller's proof for this server is not shown to the workers.
            kept = [field for field in kept if field[0] != b"authorization"]
        return kept + self._worker_headers
