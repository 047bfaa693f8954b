"""What `miles doctor` finds."""

import importlib.metadata
import os
import platform
import shutil
from dataclasses import dataclass
from typing import Any

from miles_core.errors import MilesError

PACKAGES = (
    "miles-core",
    "miles-tito",
    "miles-router",
    "miles-sync",
    "miles-megatron",
    "miles-cli",
    "torch",
    "transformers",
    "ray",
)
SHARED_MEMORY = "/dev/shm"
NEEDED_SHM_BYTES = 512 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line: what was looked for, what was found, whether it is enough."""

    ok: bool
    what: str
    found: str


def diagnose(recipe: str) -> list[Finding]:
    """Everything a run of the recipe needs, found or missing; its plug-ins are imported, torch and Ray are not."""
    return [*(_package(name) for name in PACKAGES), _python(), _shared_memory(), *_recipe(recipe)]


def _package(name: str) -> Finding:
    try:
        return Finding(ok=True, what=name, found=importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(ok=False, what=name, found="not installed; install miles-cli again")


def _python() -> Finding:
    cores = len(os.sched_getaffinity(0))
    return Finding(ok=True, what="machine", found=f"Python {platform.python_version()}, {cores} CPUs")


def _shared_memory() -> Finding:
    if not os.path.isdir(SHARED_MEMORY):
        return Finding(ok=False, what=SHARED_MEMORY, found="absent: Ray and the weight transfer need it")
    free = shutil.disk_usage(SHARED_MEMORY).free
    enough = free >= NEEDED_SHM_BYTES
    found = f"{free >> 20} MiB free" + ("" if enough else f"; at least {NEEDED_SHM_BYTES >> 20} MiB are needed")
    return Finding(ok=enough, what=SHARED_MEMORY, found=found)


def _recipe(recipe: str) -> list[Finding]:
    from miles_cli.checks import check
    from miles_cli.load_config import load

    try:
        config = load(recipe, ()).config
        check(config, thorough=True)
    except MilesError as error:
        return [Finding(ok=False, what=f"recipe {recipe}", found=str(error))]
    used = [Finding(ok=True, what=f"recipe {recipe}", found=f"{config.kind}, {config.run.steps} steps")]
    return used + [Finding(ok=True, what=f"  {name}", found=found) for name, found in _uses(config)]


def _uses(config: Any) -> list[tuple[str, str]]:
    model = config.model
    used = [("model", f"{model.type}: {getattr(model, 'path', None) or getattr(model, 'name', None) or model.package}")]
    used.append(("trainer", f"{config.trainer.type}, {config.trainer.ranks} rank(s)"))
    if config.kind == "rl":
        used.append(("engines", f"{config.engines.count} x {config.engines.type}"))
        used.append(("agent", str(config.rollout.agent or config.rollout.generate)))
        used.append(("reward", config.reward.name))
        used.append(("weights", config.weights.type))
    return used
