"""Active probes: is a worker there, and which weights does it carry."""

import asyncio
import json
from typing import Any

import aiohttp

from miles_router.pool import Pool
from miles_router.versions import weight_version
from miles_router.worker import Worker


class HealthChecker:
    """Probes `/health` and `/model_info` of every worker that is due and tells the pool.

    A worker that knows no `/health` (any answer from 300 to 499) is asked for `/v1/models` instead.

    session: the HTTP client, owned by the caller. headers: sent with each probe (a worker's bearer token).
    """

    def __init__(
        self, pool: Pool, session: aiohttp.ClientSession, *, timeout_s: float, headers: dict[str, str] | None = None
    ) -> None:
        self._pool = pool
        self._session = session
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._headers = headers or {}
        self._wanted = asyncio.Event()
        self._plain: set[str] = set()
        """Workers that have no /health."""

    async def run(self) -> None:
        """Probe for ever; cancel to end."""
        while True:
            await self.probe_due()
            wait_s = min([w.next_probe_at for w in self._pool.workers], default=float("inf")) - self._pool.clock()
            try:
                async with asyncio.timeout(min(max(wait_s, 0.01), self._pool.probe_interval_s)):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()

    def hurry(self) -> None:
        """Probe what is due without waiting for the next round."""
        self._wanted.set()

    async def probe_due(self) -> None:
        """One round: every worker that is due, all at once."""
        await asyncio.gather(*(self.probe(worker) for worker in self._pool.due()))

    async def probe(self, worker: Worker) -> None:
        """Probe one worker now."""
        # Put off first, so that a slow probe is not started a second time by the next round.
        worker.next_probe_at = self._pool.clock() + 60.0
        try:
            found = await self._ask(worker.url)
        except TimeoutError:
            self._plain.discard(worker.url)
            self._pool.probe_failed(worker, f"no answer to a probe within {self._timeout.total:g} s")
        except (aiohttp.ClientError, OSError, ValueError, RecursionError) as error:
            self._plain.discard(worker.url)
            self._pool.probe_failed(worker, f"probe failed: {type(error).__name__}: {error}")
        else:
            if isinstance(found, str):
                self._pool.probe_failed(worker, found)
            else:
                self._pool.probe_succeeded(worker, found)

    async def _ask(self, url: str) -> int | str | None:
        """The weight version of a worker that is well, None when it tells none; what is wrong as a string."""
        if url not in self._plain:
            status, _ = await self._get(f"{url}/health")
            if status == 200:
                status, info = await self._get(f"{url}/model_info")
                return version_of(info) if status == 200 else None
            if status >= 500:
                return f"/health answered {status}"
        # An OpenAI-compatible server without /health: whatever it says of its models, it is there.
        status, _ = await self._get(f"{url}/v1/models")
        if status >= 500:
            self._plain.discard(url)
            return f"/v1/models answered {status}"
        self._plain.add(url)
        return None

    async def _get(self, url: str) -> tuple[int, Any]:
        async with self._session.get(
            url, timeout=self._timeout, headers=self._headers, allow_redirects=False
        ) as answer:
            body = await answer.read()
        try:
            return answer.status, json.loads(body)
        except (ValueError, RecursionError):
            # Some servers name no content type; what is no JSON names no version, unless it was to be JSON.
            if answer.content_type == "application/json" and body:
                raise
            return answer.status, None


def version_of(info: object) -> int | None:
    """The weight version in a `/model_info` answer, None when it has none or one that is no number."""
    return weight_version(info.get("weight_version")) if isinstance(info, dict) else None
