"""What stands behind each protocol: the only place that knows concrete classes.

Every function here runs inside the process that it builds for, and imports there what it needs.
"""

import asyncio
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from miles_cli.pipeline.actors import Player, Progress, Server
from miles_cli.pipeline.loop import Rollout
from miles_cli.run_config import EnginesConfig, RunConfig, SessionsSection, SftRunConfig, WeightsConfig

if TYPE_CHECKING:
    from miles_cli.pipeline.demonstrations import Demonstrations
    from miles_cli.report.samples_file import SamplesFile
    from miles_core.data.jsonl import JsonlSource
    from miles_core.rewards.score import RewardRunner
    from miles_core.rollout.sync_loop import RolloutLoop
    from miles_megatron.torch_backend.backend import TorchBackend
    from miles_router.config import RouterConfig
    from miles_sync.push import PushReport

Push = Callable[["TorchBackend", int, Sequence[tuple[str, str | None]]], Mapping[str, Any]]


def trainer(config: RunConfig | SftRunConfig, model: Path, rank: int, rendezvous: str | None) -> "TorchBackend":
    """One rank of the training backend."""
    from miles_megatron.torch_backend.backend import TorchBackend
    from miles_megatron.torch_backend.config import TorchBackendConfig

    section = config.trainer
    own = {name: getattr(section, name) for name in TorchBackendConfig.model_fields}
    return TorchBackend(
        TorchBackendConfig(**own),
        model_dir=model,
        algorithm=config.algorithm,
        rank=rank,
        world_size=section.ranks,
        rendezvous=rendezvous,
        seed=config.run.seed,
    )


def pusher(config: WeightsConfig, router_url: str, router_token: str | None) -> Push:
    """What takes rank 0's weights to the engines, and tells the router before they go on generating."""
    from miles_cli.pipeline.router_client import RouterClient
    from miles_core.errors import WeightSyncError
    from miles_sync.push import WeightPusher
    from miles_sync.receivers.endpoint import EngineEndpoint

    sender = WeightPusher(config, [])

    async def push(backend: "TorchBackend", version: int) -> "PushReport":
        router = RouterClient(router_url, token=router_token)

        async def announce(report: "PushReport") -> None:
            for url, reason in report.failed.items():
                await router.quarantine(url, reason)
            await router.weight_version(report.version)

        try:
            return await sender.push(backend.weights(), version, announce=announce)
        finally:
            await router.close()

    def send(backend: "TorchBackend", version: int, engines: Sequence[tuple[str, str | None]]) -> Mapping[str, Any]:
        sender.set_engines([EngineEndpoint(url, token=token) for url, token in engines])
        try:
            return asdict(asyncio.run(push(backend, version)))
        except WeightSyncError as error:
            raise WeightSyncError(str(error)) from None  # in a form that travels between processes

    return send


def router(config: "RouterConfig") -> Server:
    """The router, listening on loopback."""
    from miles_router.app import create_router_app
    from miles_router.serve import ServerThread

    return ServerThread(create_router_app(config)).start()


def warm_sessions() -> None:
    """Import what the session server needs."""
    _import("miles_router.serve", "miles_router.sessions.app")


def sessions(
    section: SessionsSection, model: Path, router_url: str, router_token: str | None, token: str | None, log: Path
) -> Server:
    """The session server in front of the router, on loopback. log: the folder that keeps its sessions."""
    from miles_router.serve import ServerThread
    from miles_router.sessions.app import create_session_app
    from miles_router.sessions.config import SessionServerConfig
    from miles_router.sessions.log.config import LogConfig

    config = SessionServerConfig(
        engine_url=router_url,
        engine_token=router_token,
        token=token,
        model_dir=model,
        log=LogConfig(folder=log, fsync=section.fsync),
        **section.model_dump(exclude={"fsync"}),
    )
    return ServerThread(create_session_app(config)).start()


def warm_engine(config: EnginesConfig) -> None:
    """Import what the engine needs, while its model may still be in the making."""
    if config.type == "local":
        _import("miles_cli.engines.local_app", "miles_megatron.engine.core")


def engine(config: EnginesConfig, model: Path, number: int, logs: Path, token: str | None) -> Server:
    """The engine with this number, serving."""
    from miles_cli.pipeline.engine_server import LocalServer, SglangProcess

    if config.type == "local":
        return LocalServer(config, model, token=token)
    return SglangProcess(config, model, number=number, log=logs / f"engine-{number}-sglang.log", token=token)


def warm_rollouts(config: RunConfig) -> None:
    """Load agent, reward and prompts once: a fault in one of them is found here."""
    from miles_core.plugins import load

    _import("miles_core.rollout.sync_loop", "miles_cli.report.samples_file")
    load("generates", config.rollout.generate)
    if config.rollout.agent is not None:
        load("agents", config.rollout.agent)
    load("rewards", config.reward.name, options=config.reward.options)
    source(config, None)


def demonstrations(config: SftRunConfig, model: Path) -> "Demonstrations":
    """The batches of a supervised run, tokenized with the model's own template."""
    from miles_cli.pipeline.demonstrations import Demonstrations
    from miles_tito.tokenizer import ChatTokenizer

    return Demonstrations(config.sft, ChatTokenizer.from_pretrained(model), seed=config.run.seed)


def source(config: RunConfig, cursor: Mapping[str, Any] | None) -> "JsonlSource":
    """The prompts, from the cursor on."""
    from miles_core.data.jsonl import JsonlSource

    prompts = JsonlSource(config.data, seed=config.run.seed)
    if cursor is not None:
        prompts.restore(cursor)
    return prompts


def rollouts(
    config: RunConfig,
    session_url: str,
    token: str | None,
    cursor: Mapping[str, Any] | None,
    model: Path,
    samples: Path,
) -> Player:
    """What plays out a step in the rollout process."""
    from miles_cli.report.samples_file import SamplesFile
    from miles_core.rewards.score import RewardRunner
    from miles_core.rollout.sync_loop import RolloutLoop
    from miles_tito.loading import read_vocabulary

    judge = RewardRunner(config.reward)
    player = _Player(source(config, cursor), judge, SamplesFile(samples, decode=read_vocabulary(model).decode))
    player.loop = RolloutLoop(
        config.rollout,
        session_url=session_url,
        token=token,
        seed=config.run.seed,
        judge=judge,
        on_progress=player.advance,
    )
    return player


class _Player:
    def __init__(self, prompts: "JsonlSource", judge: "RewardRunner", samples: "SamplesFile") -> None:
        self._prompts, self._judge, self._samples = prompts, judge, samples
        self._writing: asyncio.Future[Path] | None = None
        self.loop: RolloutLoop | None = None
        self._report: Callable[[Progress], None] | None = None

    async def open(self) -> None:
        await self._judge.start()

    async def play(self, step: int, report: Callable[[Progress], None]) -> Rollout:
        assert self.loop is not None
        self._report = report
        await self._written()
        played = await self.loop.run(step, self._prompts)
        groups = [*played.groups, *played.dropped_groups]
        # Written while the step is trained.
        self._writing = asyncio.ensure_future(asyncio.to_thread(self._samples.write, step, groups))
        return Rollout(groups=played.groups, metrics=dict(played.metrics), cursor=self._prompts.state())

    def advance(self, done: int, total: int, tokens: int) -> None:
        if self._report is not None:
            self._report(Progress(done=done, total=total, tokens=tokens))

    async def close(self) -> None:
        await self._written()
        await self._judge.close()

    async def _written(self) -> None:
        if self._writing is not None:
            await self._writing


def _import(*modules: str) -> None:
    for module in modules:
        importlib.import_module(module)
