"""Async client of the session server: open a session, collect its samples, delete it."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import httpx

from miles_core.errors import RecordError, SessionError
from miles_core.http_client import open_client, reason_of, tls_of
from miles_core.prompt import SamplingConfig
from miles_core.sample import Sample
from miles_core.sample_codec import decode


class SessionClient:
    """Calls one session server. Every failure is a SessionError with the call, the status and the reason."""

    def __init__(self, url: str, *, token: str | None = None, timeout_s: float = 30.0) -> None:
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._token = token
        self._tls = tls_of(self.url)
        # A connection pool of one for each call in flight: the cost of a call in a shared pool grows with their number.
        self._idle: list[httpx.AsyncClient] = []
        self._open: list[httpx.AsyncClient] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        self._idle.clear()
        while self._open:
            await self._open.pop().aclose()

    def base_url(self, session_id: str) -> str:
        """The OpenAI base URL of a session, ending in `/v1`."""
        return f"{self.url}/sessions/{session_id}/v1"

    async def create(
        self,
        *,
        sampling: SamplingConfig,
        seed: int,
        max_seq_len: int,
        tools: Sequence[Mapping[str, Any]] = (),
        metadata: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> str:
        """Open a session with pinned sampling; its id."""
        body = {
            "sampling": sampling.model_dump(mode="json"),
            "seed": seed,
            "max_seq_len": max_seq_len,
            "tools": list(tools),
            "metadata": dict(metadata or {}),
        }
        answer = await self._object("POST", "/sessions", body, timeout_s=timeout_s)
        session_id = answer.get("session_id")
        if not isinstance(session_id, str) or not session_id:
            raise SessionError(f"{self.url}/sessions: expected a session_id, found {answer}.", status=200)
        return session_id

    async def chat(self, session_id: str, body: Mapping[str, Any], *, timeout_s: float | None = None) -> dict[str, Any]:
        """One chat completion in the session; OpenAI's body and answer."""
        return await self._object("POST", f"/sessions/{session_id}/v1/chat/completions", body, timeout_s=timeout_s)

    async def state(self, session_id: str, *, timeout_s: float | None = None) -> dict[str, Any]:
        """The recorded turns, the tree and the mismatch report."""
        return await self._object("GET", f"/sessions/{session_id}", None, timeout_s=timeout_s)

    async def samples(
        self, session_id: str, *, prompt_id: str, rollout_id: str, timeout_s: float | None = None
    ) -> list[Sample]:
        """The session as samples; SessionError with status 422 when they cannot be assembled."""
        path, body = f"/sessions/{session_id}/samples", {"prompt_id": prompt_id, "rollout_id": rollout_id}
        response = await self._call("POST", path, body, timeout_s=timeout_s)
        try:
            return decode(response.content)
        except RecordError as error:
            raise SessionError(f"{self.url}{path}: {error}", status=200) from None

    async def delete(self, session_id: str, *, timeout_s: float | None = None) -> None:
        """Delete the session; one that is already gone is fine."""
        try:
            await self._call("DELETE", f"/sessions/{session_id}", None, timeout_s=timeout_s)
        except SessionError as error:
            if error.status != 404:
                raise

    async def _object(
        self, method: str, path: str, body: Mapping[str, Any] | None, *, timeout_s: float | None
    ) -> dict[str, Any]:
        response = await self._call(method, path, body, timeout_s=timeout_s)
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise SessionError(f"{self.url}{path}: expected a JSON object, found {response.text[:100]!r}.", status=200)
        return answer

    async def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None, *, timeout_s: float | None
    ) -> httpx.Response:
        deadline = self._timeout_s if timeout_s is None else timeout_s
        http = self._idle.pop() if self._idle else self._another()
        try:
            response = await http.request(method, path, json=body, timeout=deadline)
        except httpx.TimeoutException:
            raise SessionError(
                f"{method} {_shown(path)}: expected an answer within {deadline:g} s, found none."
            ) from None
        except httpx.HTTPError as error:
            found = str(error) or type(error).__name__
            raise SessionError(
                f"{method} {_shown(path)}: expected a session server at {self.url}, found {found}."
            ) from None
        finally:
            self._idle.append(http)
        if not response.is_success:
            status, reason = response.status_code, reason_of(response)
            raise SessionError(f"{method} {_shown(path)}: expected 200, found {status}: {reason}", status=status)
        return response

    def _another(self) -> httpx.AsyncClient:
        http = open_client(self.url, token=self._token, timeout_s=self._timeout_s, tls=self._tls)
        self._open.append(http)
        return http


def _shown(path: str) -> str:
    """The path without the session's id, so that equal failures of different sessions read the same."""
    parts = path.split("/")
    return "/".join([*parts[:2], *(["{id}"] if len(parts) > 2 else []), *parts[3:]])
