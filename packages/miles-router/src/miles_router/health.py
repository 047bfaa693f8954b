"""Active probes: is a worker there, and which weights does it carry."""

import asyncio
from typing import Any

import aiohttp

from miles_router.pool import Pool
from miles_router.versions import weight_version
from miles_router.worker import Worker


class HealthChecker:
    """Probes `/health` and `/model_info` of every worker that is due and tells the pool.

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
            status, _ = await self._get(f"{worker.url}/health")
            if status != 200:
                self._pool.probe_failed(worker, f"/health answered {status}")
                return
            status, info = await self._get(f"{worker.url}/model_info")
        except TimeoutError:
            self._pool.probe_failed(worker, f"no answer to a probe within {self._timeout.total:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            self._pool.probe_failed(worker, f"probe failed: {type(error).__name__}: {error}")
        else:
            self._pool.probe_succeeded(worker, version_of(info) if status == 200 else None)

    async def _get(self, url: str) -> tuple[int, Any]:
        async with self._session.get(
            url, timeout=self._timeout, headers=self._headers, allow_redirects=False
        ) as answer:
            is_json = answer.content_type == "application/json"
            return answer.status, (await answer.json() if is_json else await answer.read())


def version_of(info: object) -> int | None:
    """The weight version in a `/model_info` answer, None when it has none or one that is no number."""
    return weight_version(info.get("weight_version")) if isinstance(info, dict) else None
