"""Async client of one inference engine, or of a router in front of several: SGLang's HTTP surface."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import httpx

from miles_core.errors import EngineError
from miles_core.http_client import open_client, reason_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One completion as exact tokens. logprobs: natural logs of the divided logits, one for each id.

    weight_versions: of each id, from the engine's runs where it reports them, else the one version of the answer.
    finish: "stop", "length" or "abort". meta: the engine's `meta_info`, untouched.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    weight_versions: tuple[int, ...]
    finish: str
    text: str
    meta: Mapping[str, Any]

    @classmethod
    def of(cls, answer: object, *, logprobs: bool = True) -> Self:
        """Read an answer of `/generate`; EngineError when its parts do not fit each other."""
        try:
            ids, meta = tuple(int(i) for i in answer["output_ids"]), answer["meta_info"]  # type: ignore[index]
            pairs = meta.get("output_token_logprobs") or [] if logprobs else []
            finish = meta["finish_reason"]["type"]
            versions = _versions(meta, len(ids))
            text = str(answer.get("text") or "")  # type: ignore[attr-defined]
            values, echoed = tuple(float(p[0]) for p in pairs), tuple(int(p[1]) for p in pairs)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise EngineError(
                f"expected output_ids and meta_info from /generate, found neither whole: {error!r}."
            ) from None
        if logprobs and echoed != ids:
            raise EngineError(
                f"expected a log-probability for each of {len(ids)} sampled ids, found {len(pairs)} others."
            )
        return cls(ids=ids, logprobs=values, weight_versions=versions, finish=finish, text=text, meta=meta)


def _versions(meta: Mapping[str, Any], count: int) -> tuple[int, ...]:
    runs = meta.get("token_weight_versions")
    if runs is None:
        return (int(meta.get("weight_version", 0)),) * count
    versions = tuple(int(version) for version, length in runs for _ in range(int(length)))
    if len(versions) != count:
        raise EngineError(f"expected weight versions for {count} sampled ids, found {len(versions)}.")
    return versions


class EngineClient:
    """Calls one engine. Every failure is an EngineError that names the address, the call and the reason.

    timeout_s bounds every call that does not name its own deadline. Close it, or use it as an async context.
    """

    def __init__(self, url: str, *, token: str | None = None, timeout_s: float = 600.0) -> None:
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._http = open_client(self.url, token=token, timeout_s=timeout_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def generate(
        self,
        input_ids: Sequence[int],
        sampling_params: Mapping[str, Any],
        *,
        rid: str | None = None,
        routing_key: str | None = None,
        timeout_s: float | None = None,
    ) -> Generation:
        """One completion of the prompt, with the log-probability of each sampled id."""
        body: dict[str, Any] = {
            "input_ids": list(input_ids),
            "sampling_params": dict(sampling_params),
            "return_logprob": True,
        }
        if rid is not None:
            body["rid"] = rid
        headers = {"X-SMG-Routing-Key": routing_key} if routing_key else {}
        return Generation.of(await self._json("POST", "/generate", body, timeout_s=timeout_s, headers=headers))

    async def health(self, *, timeout_s: float = 5.0) -> None:
        """Return when the process serves; EngineError otherwise."""
        await self._call("GET", "/health", timeout_s=timeout_s)

    async def health_generate(self, *, timeout_s: float = 30.0) -> None:
        """Return when the engine generated a token; EngineError otherwise."""
        await self._call("GET", "/health_generate", timeout_s=timeout_s)

    async def model_info(self, *, timeout_s: float = 10.0) -> dict[str, Any]:
        """`model_path`, `weight_version`, `context_length` and more."""
        return await self._json("GET", "/model_info", timeout_s=timeout_s)

    async def server_info(self, *, timeout_s: float = 10.0) -> dict[str, Any]:
        """Model info plus scheduler and cache counters."""
        return await self._json("GET", "/server_info", timeout_s=timeout_s)

    async def pause(self, mode: Literal["abort", "retract", "in_place"], *, timeout_s: float | None = None) -> None:
        """Return when no step is running."""
        await self._call("POST", "/pause_generation", {"mode": mode}, timeout_s=timeout_s)

    async def continue_generation(self, *, timeout_s: float | None = None) -> None:
        """Let a paused engine go on."""
        await self._call("POST", "/continue_generation", {}, timeout_s=timeout_s)

    async def abort(self, rid: str | None = None, *, timeout_s: float | None = None) -> None:
        """Abort one request, or all of them when no `rid` is given; each answers with the tokens it has."""
        body = {"abort_all": True} if rid is None else {"rid": rid}
        await self._call("POST", "/abort_request", body, timeout_s=timeout_s)

    async def flush_cache(self, *, timeout_s: float | None = None) -> None:
        """Forget every cached prefix."""
        await self._call("POST", "/flush_cache", {}, timeout_s=timeout_s)

    async def begin_weight_update(self, *, timeout_s: float | None = None) -> None:
        """Open a weight transaction."""
        await self._call("POST", "/begin_weight_update", {}, timeout_s=timeout_s)

    async def update_weights_from_shared_memory(
        self, manifest: Mapping[str, Any], *, timeout_s: float | None = None
    ) -> dict[str, str]:
        """Stage the tensors of a manifest; tensor name -> digest as the engine computed it."""
        path = "/update_weights_from_shared_memory"
        answer = await self._json("POST", path, dict(manifest), timeout_s=timeout_s)
        digests = answer.get("digests")
        if answer.get("success") is not True or not isinstance(digests, dict):
            raise EngineError(f"{self.url}{path}: expected success and digests, found {sorted(answer)}.")
        return digests

    async def update_weights_from_disk(
        self, model_path: str, *, weight_version: int, timeout_s: float | None = None
    ) -> None:
        """Stage (inside a transaction) or load (outside one) the weights of a folder that the engine can read."""
        path, body = "/update_weights_from_disk", {"model_path": model_path, "weight_version": str(weight_version)}
        answer = await self._json("POST", path, body, timeout_s=timeout_s)
        if answer.get("success") is not True:
            raise EngineError(f"{self.url}{path}: expected success, found {answer.get('message') or answer}.")

    async def commit_weight_update(self, weight_version: int, *, timeout_s: float | None = None) -> None:
        """Commit what was staged; the engine is on `weight_version` when this returns."""
        await self._call("POST", "/end_weight_update", {"weight_version": str(weight_version)}, timeout_s=timeout_s)

    async def abort_weight_update(self, *, timeout_s: float | None = None) -> None:
        """Drop what was staged; the engine stays on its version."""
        await self._call("POST", "/end_weight_update", {"abort": True}, timeout_s=timeout_s)

    async def update_weight_version(self, new_version: int, *, timeout_s: float | None = None) -> None:
        """Rename the version of the weights the engine already holds."""
        await self._call("POST", "/update_weight_version", {"new_version": str(new_version)}, timeout_s=timeout_s)

    async def _json(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        response = await self._call(method, path, body, timeout_s=timeout_s, headers=headers)
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise EngineError(f"{self.url}{path}: expected a JSON object, found {response.text[:100]!r}.", status=200)
        return answer

    async def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        deadline = self._timeout_s if timeout_s is None else timeout_s
        try:
            response = await self._http.request(method, path, json=body, headers=headers, timeout=deadline)
        except httpx.TimeoutException:
            raise EngineError(f"{self.url}{path}: expected an answer within {deadline:g} s, found none.") from None
        except httpx.HTTPError as error:
            raise EngineError(f"{self.url}{path}: expected an engine, found {error or type(error).__name__}.") from None
        if not response.is_success:
            status, reason = response.status_code, reason_of(response)
            raise EngineError(f"{self.url}{path}: expected 200, found {status}: {reason}", status=status)
        return response
