"""Bringing a run up: everything starts at once, and each wait has a name and a deadline."""

import asyncio
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from miles_cli.pipeline import wiring
from miles_cli.pipeline.calls import within
from miles_cli.pipeline.engine_fleet import Slot
from miles_cli.pipeline.model_source import make_folder, ready_folder
from miles_cli.pipeline.placement import Place, plan
from miles_cli.pipeline.processes import Processes
from miles_cli.pipeline.router_client import RouterClient
from miles_cli.pipeline.run_folder import RunFolder
from miles_cli.pipeline.together import together
from miles_cli.run_config import RunConfig, SftRunConfig

MODEL_WAIT_S = 600.0
"""Time to convert or draw a model."""


def places_of(config: RunConfig | SftRunConfig, *, gpus: int) -> tuple[Place, ...]:
    """The processes that a configuration asks for."""
    engines = config.engines if isinstance(config, RunConfig) else None
    return plan(
        ranks=config.trainer.ranks,
        trainer_threads=config.trainer.threads,
        trainer_cuda=config.trainer.device == "cuda",
        engines=max(engines.count, len(getattr(engines, "urls", ()))) if engines else 0,
        engine_threads=engines.threads if engines else 1,
        engine_cuda=bool(engines) and str(getattr(engines, "device", "cpu")).startswith("cuda"),
        gpus=gpus,
        embedded=config.ray.address == "local",
    )


class Startup:
    """Starts what a configuration asks for, in the processes that were spawned for it."""

    def __init__(self, config: RunConfig | SftRunConfig, folder: RunFolder, token: str | None = None) -> None:
        self._config = config
        self._folder = folder
        self._token = token
        self._model: asyncio.Future[Path] = asyncio.get_running_loop().create_future()

    async def boot_engine(self, processes: Processes, slot: Slot) -> str:
        """Make an engine serve; its URL. Used at the start and whenever one is replaced."""
        config = self._rl.engines
        await processes.call_engine(slot, "to import", "prepare", wiring.warm_engine, config)
        number = processes.fleet.slots.index(slot)
        start = ("start", wiring.engine, config, await self.model(), number, self._folder.logs, self._token)
        longer = getattr(config, "start_timeout_s", None)
        return str(await processes.call_engine(slot, "to serve", *start, timeout_s=longer))

    async def rl(
        self, processes: Processes, cursor: Mapping[str, Any] | None
    ) -> "tuple[RouterClient, asyncio.Future[Any]]":
        """Everything of a reinforcement-learning run: the client of its router, and what is done when the trainer is.

        The first rollouts need no trainer, so they begin while it still starts.
        """
        router = asyncio.ensure_future(self._start_router(processes))
        sessions = asyncio.ensure_future(self._start_sessions(processes, router))
        trainer = asyncio.ensure_future(together(self._start_trainer(processes), self._start_pusher(processes, router)))
        try:
            await together(
                self._make_model(processes),
                router,
                sessions,
                self._start_rollouts(processes, sessions, cursor),
                self._start_engines(processes, router),
                *(processes.meet(role) for role in processes.actors),
            )
        except BaseException:
            trainer.cancel()
            await asyncio.gather(trainer, return_exceptions=True)
            raise
        return await router, trainer

    async def sft(self, processes: Processes) -> None:
        """The trainer alone."""
        meetings = (processes.meet(role) for role in processes.actors)
        await together(self._make_model(processes), self._start_trainer(processes), *meetings)

    async def model(self) -> Path:
        """The model's folder, once it is there."""
        return await asyncio.shield(self._model)

    @property
    def _rl(self) -> RunConfig:
        assert isinstance(self._config, RunConfig)
        return self._config

    async def _make_model(self, processes: Processes) -> None:
        model = self._config.model
        made: Any = ready_folder(model)
        if made is None:
            target, seed = self._folder.path / "model", self._config.run.seed
            call = processes.ranks[0].prepare_model.remote(make_folder, model, target, seed)
            made = await within(MODEL_WAIT_S, f"the model of type {model.type} to be made", call)
        self._model.set_result(Path(made))

    async def _start_router(self, processes: Processes) -> RouterClient:
        url = await processes.call("router", "to serve", "start", wiring.router, self._rl.router)
        router = RouterClient(url, token=self._rl.router.token)
        await router.weight_version(0)
        return router

    async def _start_sessions(self, processes: Processes, router: "asyncio.Future[RouterClient]") -> str:
        await processes.call("sessions", "to import", "prepare", wiring.warm_sessions)
        model, client = await self.model(), await asyncio.shield(router)
        log = self._folder.logs / "sessions"
        start = ("start", wiring.sessions, self._rl.sessions, model, client.url, client.token, self._token, log)
        return str(await processes.call("sessions", "to serve", *start))

    async def _start_rollouts(
        self, processes: Processes, sessions: "asyncio.Future[str]", cursor: Mapping[str, Any] | None
    ) -> None:
        await processes.call("rollout", "to load agent, reward and prompts", "prepare", wiring.warm_rollouts, self._rl)
        model, url = await self.model(), await asyncio.shield(sessions)
        start = ("start", wiring.rollouts, self._rl, url, self._token, cursor, model, self._folder.samples)
        await processes.call("rollout", "to be ready", *start)

    async def _start_engines(self, processes: Processes, router: "asyncio.Future[RouterClient]") -> None:
        await processes.fleet.start()
        client = await asyncio.shield(router)
        await together(*(client.add_worker(url) for url, _ in processes.fleet.endpoints))

    async def _start_trainer(self, processes: Processes) -> None:
        model = await self.model()
        ranks = len(processes.ranks)
        rendezvous = f"tcp://127.0.0.1:{_free_port()}" if ranks > 1 else None
        await together(
            *(
                processes.call(
                    f"trainer-{rank}", "to be ready", "start", wiring.trainer, self._config, model, rank, rendezvous
                )
                for rank in range(ranks)
            )
        )

    async def _start_pusher(self, processes: Processes, router: "asyncio.Future[RouterClient]") -> None:
        client = await asyncio.shield(router)
        start = ("start_pusher", wiring.pusher, self._rl.weights, client.url, client.token)
        await processes.call("trainer-0", "to reach the engines", *start)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
