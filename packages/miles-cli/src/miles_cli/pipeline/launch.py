"""`miles run` from a checked configuration to a finished run folder, and the way out of it, whatever happens."""

import asyncio
import os
import shutil
from collections.abc import Mapping
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

from miles_cli.interrupts import run_interruptible
from miles_cli.pipeline import wiring
from miles_cli.pipeline.cluster import Cluster
from miles_cli.pipeline.engine_fleet import Slot
from miles_cli.pipeline.janitor import Janitor
from miles_cli.pipeline.loop import Loop, Position
from miles_cli.pipeline.observer import RunObserver
from miles_cli.pipeline.processes import Processes
from miles_cli.pipeline.remote import RemoteRollouts, RemoteTrainers
from miles_cli.pipeline.resume import latest
from miles_cli.pipeline.router_client import RouterClient
from miles_cli.pipeline.run_folder import Mode, RunFolder
from miles_cli.pipeline.sft_loop import SftLoop
from miles_cli.pipeline.startup import Startup, places_of
from miles_cli.pipeline.watch import Watch
from miles_cli.run_config import RunConfig, SftRunConfig
from miles_core.config import dump_toml
from miles_megatron.checkpoint import CheckpointStore

STEP_MARGIN_S = 120.0
"""What a rollout may take beyond its own deadline and that of its reward: sessions, collection, a busy machine."""
BLOCK_MARGIN_S = 5.0


def launch(config: RunConfig | SftRunConfig, *, out: Path, mode: Mode, as_json: bool, origin: float) -> None:
    """Run to the end. origin: `time.monotonic()` when the command started. Raises MilesError when the run fails.

    However this is left, no process of the run is left behind.
    """
    folder = RunFolder.open(out, mode=mode)
    janitor = Janitor.start(lock_fd=folder.lock_fd)
    try:
        folder.write_config(dump_toml(config))
        with Cluster(config.ray) as cluster:
            run_interruptible(_Run(config, folder, janitor, cluster, as_json=as_json, origin=origin).run())
    finally:
        janitor.close()
        folder.close()


class _Run:
    """One run while it goes."""

    def __init__(
        self,
        config: RunConfig | SftRunConfig,
        folder: RunFolder,
        janitor: Janitor,
        cluster: Cluster,
        *,
        as_json: bool,
        origin: float,
    ) -> None:
        self._config, self._folder, self._janitor = config, folder, janitor
        self._origin = origin
        self._own = {"controller": os.getpid(), "janitor": janitor.pid, **cluster.processes()}
        self._gpus = cluster.gpus
        self._store = CheckpointStore(folder.checkpoints, keep=config.run.keep)
        self._found = latest(self._store)
        self._observer = RunObserver(
            folder,
            name=config.run.name,
            steps=config.run.steps,
            first_step=self._start.step,
            as_json=as_json,
            origin=origin,
        )

    @property
    def _start(self) -> Position:
        return self._found[0] if self._found else Position()

    async def run(self) -> None:
        """Bring everything up, run the loop, export, and take everything down."""
        watch = Watch(self._folder.logs)
        startup = Startup(self._config, self._folder)
        processes = Processes(
            places_of(self._config, gpus=self._gpus),
            folder=self._folder,
            watch=watch,
            start_timeout_s=self._config.run.start_timeout_s,
            boot=startup.boot_engine,
            changed=self._record_processes,
            note=self._observer.note,
        )
        self._record_processes({})
        try:
            if isinstance(self._config, RunConfig):
                await watch.guard(self._rl(self._config, processes, startup, watch))
            else:
                await watch.guard(self._sft(self._config, processes, startup))
        finally:
            await watch.close()
            await processes.close()
            self._observer.close()

    async def _rl(
        self,
        config: RunConfig,
        processes: Processes,
        startup: Startup,
        watch: Watch,
    ) -> None:
        self._observer.phase("start", 0)
        router, trainer_ready = await startup.rl(processes, self._start.cursor)
        trainers = self._trainers(processes, trainer_ready)
        try:
            if self._found:
                await trainers.load(self._found[1], self._start.weight_version)
            for slot in processes.fleet.slots:
                _follow(slot, watch, processes, router, trainers)
            await self._loop(config, processes, trainers).run(self._start)
            await self._export(trainers)
        finally:
            trainer_ready.cancel()
            await asyncio.gather(trainer_ready, return_exceptions=True)
        await router.close()

    async def _sft(self, config: SftRunConfig, processes: Processes, startup: Startup) -> None:
        self._observer.phase("start", 0)
        await startup.sft(processes)
        trainers = self._trainers(processes)
        if self._found:
            await trainers.load(self._found[1], 0)
        loop = SftLoop(
            batches=wiring.demonstrations(config, await startup.model()),
            trainers=trainers,
            observer=self._observer,
            steps=config.run.steps,
            save_every=config.run.save_every,
            origin=self._origin,
        )
        await loop.run(self._start)
        await self._export(trainers)

    def _loop(self, config: RunConfig, processes: Processes, trainers: RemoteTrainers) -> Loop:
        rollout = config.rollout
        per_step = rollout.prompts_per_step * rollout.samples_per_prompt
        waves = ceil((rollout.prompts_per_step + rollout.refill) * rollout.samples_per_prompt / rollout.max_concurrency)
        rollouts = RemoteRollouts(
            processes.actors["rollout"],
            timeout_s=waves * (rollout.timeout_s + config.reward.timeout_s + STEP_MARGIN_S),
            blocked_s=rollout.timeout_s + BLOCK_MARGIN_S,
            advance=self._observer.advance,
        )
        return Loop(
            rollouts=rollouts,
            trainers=trainers,
            observer=self._observer,
            steps=config.run.steps,
            rollouts_per_step=per_step,
            save_every=config.run.save_every,
            temperature=rollout.sampling.temperature,
            origin=self._origin,
        )

    def _trainers(self, processes: Processes, ready: "asyncio.Future[Any] | None" = None) -> RemoteTrainers:
        return RemoteTrainers(
            processes.ranks,
            endpoints=lambda: processes.fleet.endpoints,
            store=self._store,
            timeout_s=self._config.run.step_timeout_s,
            note=self._observer.note,
            ready=ready,
        )

    async def _export(self, trainers: RemoteTrainers) -> None:
        self._observer.phase("export", 0)
        target = self._folder.export
        unfinished = target.with_name(".export.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        await trainers.export(unfinished)
        shutil.rmtree(target, ignore_errors=True)
        unfinished.rename(target)

    def _record_processes(self, roles: Mapping[str, int]) -> None:
        everyone = {**self._own, **roles}
        self._folder.write_processes(everyone)
        self._janitor.watch({role: pid for role, pid in everyone.items() if role not in ("controller", "janitor")})


def _follow(slot: Slot, watch: Watch, processes: Processes, router: RouterClient, trainers: RemoteTrainers) -> None:
    """Replace the engine of a slot whenever it dies."""
    again = partial(_follow, watch=watch, processes=processes, router=router, trainers=trainers)
    watch.replaceable(slot.actor, lambda: processes.fleet.replace(slot, router, trainers.catch_up, again))
