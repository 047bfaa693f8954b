"""Gives every sample its reward within a deadline; a reward that fails costs its sample, never the run."""

import asyncio
import inspect
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from pydantic import Field

from miles_core.config import Config
from miles_core.errors import RewardError
from miles_core.plugins import load
from miles_core.prompt import Prompt
from miles_core.rewards.process import RewardProcess
from miles_core.sample import Finish, Sample

_CANNOT_HANG = frozenset({"agent_reward", "boxed", "choice", "f1", "random", "remote"})
"""Built-in rewards that run in time linear in their input or only wait: no process needs to be killed for them."""


def _cannot_hang(name: str) -> bool:
    """`math` is one of them as long as it has no symbolic checker to call."""
    return name in _CANNOT_HANG or (name == "math" and find_spec("math_verify") is None)


class RewardConfig(Config):
    """Which reward judges the samples, and how long it may take."""

    name: str = Field(min_length=1)
    """A built-in name, an entry point of `miles.rewards`, `module:attribute` or `file.py:attribute`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the reward function."""
    timeout_s: float = Field(30.0, gt=0)
    """Deadline of one judgement; later ones are killed and their samples aborted."""
    in_process: bool | None = None
    """Run inside the rollout process, where a function that hangs cannot be killed.

    By default only built-in rewards that cannot hang do."""
    workers: int = Field(2, ge=1)
    """Processes that judge at the same time."""
    start_timeout_s: float = Field(60.0, gt=0)
    """Deadline for a worker process to start and import the reward."""


class RewardRunner:
    """Judges samples with one reward function. Its signature is checked here, at construction.

    Use it as an async context or call `close`; no process is left behind then. base: folder of relative plug-in files.
    """

    def __init__(self, config: RewardConfig, *, base: Path | None = None) -> None:
        self._config = config
        self._base = (base or Path.cwd()).resolve()
        self._function = load("rewards", config.name, base=self._base, options=config.options)
        own = config.in_process if config.in_process is not None else _cannot_hang(config.name)
        self._in_process = own
        self._gate = asyncio.Semaphore(config.workers)
        self._idle: list[RewardProcess] = []
        self._live: set[RewardProcess] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start one worker ahead of the first sample; RewardError when the reward cannot be loaded in it."""
        if not self._in_process and not self._live:
            self._idle.append(await self._new_worker())

    async def score(self, sample: Sample, prompt: Prompt) -> Sample:
        """The sample with its reward, or aborted with the reason; an aborted sample comes back as it is."""
        if sample.finish is Finish.ABORTED:
            return sample
        try:
            reward = await (self._here(sample, prompt) if self._in_process else self._in_worker(sample, prompt))
            return sample.with_reward(_finite(reward))
        except Exception as error:  # noqa: BLE001 - whatever a reward raises becomes the sample's reason
            what = str(error) if isinstance(error, RewardError) else f"{type(error).__name__}: {error}"
            return sample.aborted(f"the reward {self._config.name!r} failed: {what[:1000]}")

    async def close(self) -> None:
        """Kill every worker, busy or not."""
        self._closed = True
        self._idle.clear()
        for worker in list(self._live):
            await self._drop(worker)

    async def _here(self, sample: Sample, prompt: Prompt) -> float:
        scope = asyncio.timeout(self._config.timeout_s)
        try:
            async with scope:
                value = self._function(sample, prompt, **self._config.options)
                return float(await value if inspect.isawaitable(value) else value)
        except TimeoutError:
            if not scope.expired():
                raise
            raise self._late() from None

    async def _in_worker(self, sample: Sample, prompt: Prompt) -> float:
        async with self._gate:
            self._check_open()
            worker = self._idle.pop() if self._idle else await self._new_worker()
            healthy = False
            scope = asyncio.timeout(self._config.timeout_s)
            try:
                async with scope:
                    reward, healthy = await self._answer(worker, sample, prompt)
                    return self._unwrap(reward)
            except TimeoutError:
                if not scope.expired():
                    raise
                raise self._late() from None
            finally:
                if healthy and not self._closed:
                    self._idle.append(worker)
                else:
                    await self._drop(worker)

    @staticmethod
    async def _answer(worker: RewardProcess, sample: Sample, prompt: Prompt) -> tuple[float | RewardError, bool]:
        """What the worker says, and whether it can judge the next sample."""
        try:
            return await worker.judge(sample, prompt), True
        except RewardError as error:
            return error, worker.running

    @staticmethod
    def _unwrap(reward: float | RewardError) -> float:
        if isinstance(reward, RewardError):
            raise reward
        return reward

    def _late(self) -> RewardError:
        return RewardError(f"it ran past its deadline of {self._config.timeout_s:g} s.")

    async def _new_worker(self) -> RewardProcess:
        """A worker that has loaded the reward; one that `close` finds while it starts is killed like any other."""
        worker = await RewardProcess.spawn()
        self._live.add(worker)
        config = self._config
        try:
            self._check_open()
            await worker.load(config.name, config.options, base=self._base, timeout_s=config.start_timeout_s)
        except BaseException:
            await self._drop(worker)
            raise
        return worker

    def _check_open(self) -> None:
        if self._closed:
            raise RewardError("expected a runner that is open, found one that was closed.")

    async def _drop(self, worker: RewardProcess) -> None:
        self._live.discard(worker)
        await worker.kill()


def _finite(reward: float) -> float:
    if not math.isfinite(reward):
        raise RewardError(f"expected a finite number, found {reward}.")
    return reward
