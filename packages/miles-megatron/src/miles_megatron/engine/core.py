"""The local engine as an object with an async API: generate, abort, pause, replace weights."""

import asyncio
import secrets
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from torch import Tensor

from miles_core.errors import DeadlineError, EngineError
from miles_core.seeds import derive
from miles_megatron.engine.config import EngineConfig
from miles_megatron.engine.loop import EngineLoop, PauseMode
from miles_megatron.engine.request import Completion, Request
from miles_megatron.engine.runner import Runner
from miles_megatron.engine.sampling_params import SamplingParams
from miles_megatron.engine.stopping import Decode, StopRules

T = TypeVar("T")


class EngineCore:
    """Generates from a Hugging Face model folder; usable from one event loop at a time. Close it, or use it in `with`.

    The forward pass runs in a thread of its own, so the event loop stays responsive. The same prompt ids and
    `sampling_seed` give the same output bits whatever else runs. decode: text of ids, for stop strings.
    """

    def __init__(
        self, config: EngineConfig, model_dir: str | Path, *, decode: Decode | None = None, weight_version: str = "0"
    ) -> None:
        self.config = config
        self.model_dir = str(model_dir)
        self._runner = Runner(config, Path(model_dir))
        self._decode = decode
        rules = StopRules(eos_ids=self._runner.eos_ids, decode=decode)
        self._loop = EngineLoop(self._runner, config, rules=rules, version=weight_version)
        self._names: set[str] = set()
        self._loop.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Abort what runs and end the thread."""
        self._loop.close(timeout_s=self.config.command_timeout_s)

    @property
    def weight_version(self) -> str:
        """Version of the weights that the next step uses."""
        return self._loop.version

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and output together."""
        return self._runner.context_length

    def model_info(self) -> dict[str, Any]:
        """What `/model_info` answers."""
        return {
            "model_path": self.model_dir,
            "tokenizer_path": self.model_dir,
            "is_generation": True,
            "weight_version": self.weight_version,
            "context_length": self.context_length,
            "vocab_size": self._runner.vocab_size,
            "eos_token_ids": sorted(self._runner.eos_ids),
            "dtype": self.config.dtype,
            "bit_equal_to_trainer": self._runner.exact,
            "max_running_requests": self.config.max_running,
        }

    def counters(self) -> dict[str, Any]:
        """Scheduler and cache counters; read while the engine runs, so they may be one step apart."""
        scheduler = self._loop.scheduler
        return {
            **self._loop.counters,
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "retractions": scheduler.retractions,
            "cache_tokens": scheduler.cache_tokens,
            "cached_pages": len(scheduler.prefixes),
            "paused": self._loop.paused,
            "weight_update_open": self._loop.weights.open,
        }

    async def generate(
        self, input_ids: Sequence[int], params: SamplingParams, *, rid: str | None = None, stream: bool = False
    ) -> AsyncGenerator[Completion, None]:
        """Yield the finished completion, after one for every step with new tokens when `stream`; all are cumulative.

        EngineError with status 400 for a prompt that cannot be served. Leaving the iterator early aborts the request.
        """
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[Completion] = asyncio.Queue()
        request = self._request(input_ids, params, rid, stream, _deliverer(loop, arrived))
        self._names.add(request.rid)
        finished = False
        try:
            self._loop.call(lambda: self._loop.submit(request))
            while not finished:
                completion = await arrived.get()
                finished = completion.finish is not None
                yield completion
        finally:
            self._names.discard(request.rid)
            if not finished:
                self._loop.call(lambda: self._loop.abort(request.rid))

    async def complete(self, input_ids: Sequence[int], params: SamplingParams, *, rid: str | None = None) -> Completion:
        """The finished completion."""
        stream = self.generate(input_ids, params, rid=rid)
        try:
            return await anext(stream)
        finally:
            await stream.aclose()

    async def abort(self, rid: str | None = None) -> int:
        """End one request, or all when no `rid` is given; how many ended. They answer with what they have."""
        if rid is None:
            return await self._command(lambda: self._loop.abort_all("aborted by request"), "an abort")
        return int(await self._command(lambda: self._loop.abort(rid), "an abort"))

    async def pause(self, mode: PauseMode) -> None:
        """Return when no step is running; requests wait until `resume`."""
        await self._command(lambda: self._loop.pause(mode), "a pause")

    async def resume(self) -> None:
        """Let the engine compute again."""
        await self._command(self._loop.resume, "a continue")

    async def flush_cache(self) -> None:
        """Forget all kept prefixes."""
        await self._command(self._loop.flush, "a cache flush")

    @property
    def weight_update_open(self) -> bool:
        """Whether a transaction is open."""
        return self._loop.weights.open

    async def begin_weight_update(self) -> None:
        """Open a transaction, dropping one left open."""
        self._loop.weights.begin()

    async def stage_weights(self, tensors: Iterable[tuple[str, Tensor]], *, copy: bool = True) -> list[str]:
        """Stage tensors in the open transaction, off the event loop; their names. WeightSyncError names a misfit.

        copy: False keeps the tensors themselves; nobody else may then change them.
        """
        return await asyncio.to_thread(self._loop.weights.stage, tensors, copy=copy)

    async def commit_weights(self, version: str, *, partial: bool = False) -> int:
        """Put in everything staged as `version`, all or none, between two steps; how many tensors.

        WeightSyncError when a parameter is missing (unless `partial`); the engine then stays on its version.
        """
        return await self._command(lambda: self._loop.commit(version, partial=partial), "a weight commit")

    async def abort_weights(self) -> None:
        """Drop everything staged."""
        self._loop.weights.abort()

    async def set_weight_version(self, version: str) -> None:
        """Rename the version of the weights the engine holds."""
        await self._command(lambda: self._loop.rename(version), "a version change")

    def _request(
        self,
        input_ids: Sequence[int],
        params: SamplingParams,
        rid: str | None,
        stream: bool,
        deliver: Callable[[Completion], None],
    ) -> Request:
        tokens = list(input_ids)
        context, vocab = self._runner.context_length, self._runner.vocab_size
        if not tokens or not all(isinstance(i, int) and 0 <= i < vocab for i in tokens):
            raise EngineError(f"input_ids: expected at least one integer, each from 0 to {vocab - 1}.", status=400)
        if len(tokens) >= context:
            raise EngineError(
                f"input_ids: expected fewer tokens than the context length of {context}, found {len(tokens)}; "
                "send a shorter prompt.",
                status=400,
            )
        if params.stop and self._decode is None:
            raise EngineError("sampling_params.stop: this model folder has no tokenizer for stop strings.", status=400)
        if rid in self._names:
            raise EngineError(f"rid: expected a name that no running request has, found {rid!r} again.", status=400)
        return Request(
            rid=rid or uuid.uuid4().hex,
            prompt_tokens=len(tokens),
            tokens=tokens,
            params=params,
            seed=secrets.randbits(63) if params.sampling_seed is None else params.sampling_seed,
            limit=min(len(tokens) + params.max_new_tokens, context),
            deliver=deliver,
            stream=stream,
        )

    async def _command(self, command: Callable[[], T], what: str) -> T:
        limit = self.config.command_timeout_s
        try:
            return await asyncio.wait_for(asyncio.wrap_future(self._loop.call(command)), limit)
        except TimeoutError:
            raise DeadlineError(f"waited {limit:g} s for the engine's step to end before {what}.") from None


def choice_seed(seed: int | None, index: int) -> int | None:
    """Seed of the n-th answer to one prompt: the request's own for the first, derived from it for the others."""
    return seed if seed is None or index == 0 else derive(seed, "choice", index)


def _deliverer(loop: asyncio.AbstractEventLoop, arrived: "asyncio.Queue[Completion]") -> Callable[[Completion], None]:
    def deliver(completion: Completion) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(arrived.put_nowait, completion)

    return deliver
