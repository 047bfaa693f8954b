"""Which processes a run consists of and what each may use: a pure plan, then actors."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Kind = Literal["trainer", "engine", "router", "sessions", "rollout"]
EMBEDDED_CPUS = 0.01
"""Ray's share of one actor in an embedded cluster: all of them fit whatever the machine has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One process. threads: of its compute; cpus and gpus: what Ray reserves for it."""

    role: str
    kind: Kind
    threads: int = 1
    cpus: float = EMBEDDED_CPUS
    gpus: float = 0.0


def plan(
    *,
    ranks: int,
    trainer_threads: int,
    trainer_cuda: bool,
    engines: int,
    engine_threads: int,
    engine_cuda: bool,
    gpus: int,
    embedded: bool,
) -> tuple[Place, ...]:
    """The processes of a run, in the order in which they start (what starts slowest first).

    Processes that want a GPU share those there are evenly when there are too few. engines 0 leaves out everything
    that only rollouts need.
    """
    wanting = ranks * trainer_cuda + engines * engine_cuda
    share = 0.0 if not wanting else 1.0 if gpus >= wanting else int(100 * max(gpus, 1) / wanting) / 100

    def place(role: str, kind: Kind, *, threads: int = 1, cuda: bool = False) -> Place:
        cpus = EMBEDDED_CPUS if embedded or kind not in ("trainer", "engine") else float(threads)
        return Place(role=role, kind=kind, threads=threads, cpus=cpus, gpus=share if cuda else 0.0)

    heavy = [place(f"engine-{n}", "engine", threads=engine_threads, cuda=engine_cuda) for n in range(engines)]
    heavy += [place(f"trainer-{n}", "trainer", threads=trainer_threads, cuda=trainer_cuda) for n in range(ranks)]
    if not engines:
        return tuple(heavy)
    return (*heavy, place("sessions", "sessions"), place("rollout", "rollout"), place("router", "router"))


def start_actor(place: Place, logs: Path) -> Any:
    """Start the actor of a place on this machine and return its handle; it is not waited for."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from miles_cli.pipeline import actors

    hosts = {"trainer": actors.TrainerRank, "rollout": actors.RolloutHost}
    # Services listen on loopback and weights travel through shared memory, so all of a run is on one machine.
    here = NodeAffinitySchedulingStrategy(node_id=ray.get_runtime_context().get_node_id(), soft=False)
    return (
        ray.remote(hosts.get(place.kind, actors.Service))
        .options(
            num_cpus=place.cpus,
            num_gpus=place.gpus,
            max_concurrency=actors.THREADS,
            max_restarts=0,
            scheduling_strategy=here,
        )
        .remote(place.role, logs, place.threads)
    )


def of_kind(places: Sequence[Place], kind: Kind) -> tuple[Place, ...]:
    """The places of one kind."""
    return tuple(place for place in places if place.kind == kind)
