"""The controller's calls to the router's control paths."""

from typing import Any

import httpx

from miles_core.errors import MilesError


class RouterClient:
    """Adds and removes engines, and says which weight version may answer."""

    def __init__(self, url: str, *, token: str | None = None, timeout_s: float = 10.0) -> None:
        self.url, self.token = url, token
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # Loopback addresses never go through a proxy that the environment names.
        self._http = httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout_s, trust_env=False)

    async def add_worker(self, url: str) -> None:
        """Admit an engine once it is healthy."""
        await self._post("/add_worker", {"url": url})

    async def remove_worker(self, url: str) -> None:
        """Forget an engine; its calls may end."""
        await self._post("/remove_worker", {"url": url}, missing_ok=True)

    async def quarantine(self, url: str, reason: str) -> None:
        """Send nothing to an engine until it reports the current version again."""
        await self._post("/quarantine", {"url": url, "reason": reason}, missing_ok=True)

    async def weight_version(self, version: int) -> None:
        """From now on only engines that report this version are admitted."""
        await self._post("/weight_version", {"version": version})

    async def close(self) -> None:
        """Release the connections."""
        await self._http.aclose()

    async def _post(self, path: str, body: dict[str, Any], *, missing_ok: bool = False) -> None:
        try:
            answer = await self._http.post(path, json=body)
        except httpx.HTTPError as error:
            raise MilesError(
                f"the router at {self.url} did not answer {path}: {type(error).__name__} {error}"
            ) from error
        if answer.status_code == 404 and missing_ok:
            return
        if answer.status_code != 200:
            raise MilesError(f"the router at {self.url} answered {path} with {answer.status_code}: {answer.text[:200]}")
