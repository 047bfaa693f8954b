"""The client of one engine's weight-update calls."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from miles_core.errors import WeightSyncError


@dataclass(frozen=True, slots=True)
class EngineEndpoint:
    """Where an engine listens. url: without a trailing slash; token: its bearer token, if it asks for one."""

    url: str
    token: str | None = field(default=None, kw_only=True, repr=False)


class EngineConnection:
    """One engine's calls, each with its own deadline in seconds.

    Every method raises WeightSyncError, with the engine's own reason, for a status other than 2xx, for an answer that
    says `"success": false`, for a connection that breaks and for a deadline that passes.
    """

    def __init__(self, endpoint: EngineEndpoint, client: httpx.AsyncClient) -> None:
        self.url = endpoint.url.rstrip("/")
        self._client = client
        self._headers = {"Authorization": f"Bearer {endpoint.token}"} if endpoint.token else {}

    async def weight_version(self, *, timeout_s: float) -> str:
        """The version that the engine says it serves."""
        info = await self._call("GET", "/model_info", None, timeout_s)
        return str(info.get("weight_version"))

    async def pause(self, mode: str, *, timeout_s: float) -> None:
        """Return when no step of the engine is running."""
        await self._call("POST", "/pause_generation", {"mode": mode}, timeout_s)

    async def begin(self, *, timeout_s: float) -> None:
        """Open a transaction."""
        await self._call("POST", "/begin_weight_update", {}, timeout_s)

    async def update(self, route: str, body: Mapping[str, Any], *, timeout_s: float) -> Mapping[str, Any]:
        """Stage what the body describes; the engine's answer."""
        return await self._call("POST", route, body, timeout_s)

    async def end(self, version: int, *, timeout_s: float) -> None:
        """Commit everything staged as this version."""
        await self._call("POST", "/end_weight_update", {"weight_version": str(version)}, timeout_s)

    async def abort(self, *, timeout_s: float) -> None:
        """Drop everything staged; the engine keeps its version."""
        await self._call("POST", "/end_weight_update", {"abort": True}, timeout_s)

    async def resume(self, *, timeout_s: float) -> None:
        """Let the engine generate again."""
        await self._call("POST", "/continue_generation", {}, timeout_s)

    async def _call(
        self, method: str, route: str, body: Mapping[str, Any] | None, timeout_s: float
    ) -> Mapping[str, Any]:
        what = f"engine {self.url} {route}"
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._client.request(
                    method, f"{self.url}{route}", json=body, headers=self._headers, timeout=None
                )
        except TimeoutError as error:
            raise WeightSyncError(f"{what}: no answer within {timeout_s:g} s.") from error
        except httpx.HTTPError as error:
            raise WeightSyncError(f"{what}: no answer ({type(error).__name__}: {error}).") from error
        content = _content(answer)
        if not answer.is_success:
            raise WeightSyncError(f"{what}: status {answer.status_code}: {_reason(content, answer.text)}")
        if content.get("success") is False:
            raise WeightSyncError(f"{what}: refused: {_reason(content, answer.text)}")
        return content


def open_client(endpoints: Sequence[EngineEndpoint]) -> httpx.AsyncClient:
    """A client that ignores proxies: engines are addressed directly. Deadlines come with each call."""
    # Reading the certificate store takes longer than a small push; plain HTTP has no use for it.
    encrypted = any(endpoint.url.lower().startswith("https:") for endpoint in endpoints)
    return httpx.AsyncClient(verify=encrypted, trust_env=False, follow_redirects=False, timeout=None)


def _content(answer: httpx.Response) -> Mapping[str, Any]:
    try:
        content = answer.json()
    except ValueError:
        return {}
    return content if isinstance(content, Mapping) else {}


def _reason(content: Mapping[str, Any], text: str) -> str:
    error = content.get("error")
    found = error.get("message") if isinstance(error, Mapping) else error
    return str(found or content.get("message") or content.get("detail") or text or "no reason given")[:500]
