"""The calls that replace an engine's weights."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from miles_core.errors import EngineError, WeightSyncError
from miles_megatron.engine.core import EngineCore
from miles_sync.manifest import Manifest
from miles_sync.receivers.disk import read_folder
from miles_sync.receivers.shared_memory import open_manifest

Body = Callable[[Request], Awaitable[Mapping[str, Any]]]
Call = Callable[[Request], Awaitable[Response]]


def weight_routes(core: EngineCore, body: Body) -> dict[str, Call]:
    """Path -> handler of the weight calls; `body` reads a request's JSON object."""
    calls = WeightCalls(core, body)
    return {
        "/begin_weight_update": calls.begin,
        "/update_weights_from_shared_memory": calls.from_shared_memory,
        "/update_weights_from_disk": calls.from_disk,
        "/end_weight_update": calls.end,
        "/update_weight_version": calls.rename,
    }


class WeightCalls:
    """Handlers; a failure is a WeightSyncError, answered as 400 with the tensor's name."""

    def __init__(self, core: EngineCore, body: Body) -> None:
        self._core, self._body = core, body

    async def begin(self, _: Request) -> Response:
        """Open a transaction."""
        await self._core.begin_weight_update()
        return _success()

    async def from_shared_memory(self, request: Request) -> Response:
        """Stage what a manifest lists; the digests are those of the received bytes, checked against the manifest's."""
        manifest = await self._body(request)
        names = await self._core.stage_weights(open_manifest(manifest), copy=False)
        digests = Manifest.parse(manifest).digests
        return _success(digests={name: digests[name] for name in names})

    async def from_disk(self, request: Request) -> Response:
        """Stage a folder's tensors in the open transaction, or load them at once when none is open."""
        body = await self._body(request)
        path = body.get("model_path")
        if not isinstance(path, str) or not path:
            raise EngineError("model_path: expected a folder of safetensors.", status=400)
        if self._core.weight_update_open:
            await self._core.stage_weights(read_folder(Path(path)), copy=False)
            return _success(message="staged")
        version = _version(body, "weight_version")
        await self._core.begin_weight_update()
        try:
            await self._core.stage_weights(read_folder(Path(path)), copy=False)
        except WeightSyncError:
            await self._core.abort_weights()
            raise
        await self._core.commit_weights(version)
        return _success(message=f"loaded as version {version}")

    async def end(self, request: Request) -> Response:
        """Commit or drop what was staged."""
        body = await self._body(request)
        if body.get("abort") is True:
            await self._core.abort_weights()
            return _success(message="dropped")
        count = await self._core.commit_weights(_version(body, "weight_version"))
        return _success(tensors=count, weight_version=self._core.weight_version)

    async def rename(self, request: Request) -> Response:
        """Rename the version."""
        version = _version(await self._body(request), "new_version")
        await self._core.set_weight_version(version)
        return _success(new_version=version)


def _success(**facts: Any) -> Response:
    return Response(orjson.dumps({"success": True, **facts}), media_type="application/json")


def _version(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if isinstance(value, bool) or not isinstance(value, int | str) or value == "":
        raise EngineError(f"{name}: expected the version as a string, found {value!r}.", status=400)
    return str(value)
