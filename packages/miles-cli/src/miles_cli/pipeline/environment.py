"""The environment of a run: what Ray and the children of this process read when they start."""

from miles_core import env

QUIET = {
    # Ray notices `uv run` and would build the environment a second time for its workers.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
}
CHILDREN = {
    # Spinning OpenMP threads of several processes starve each other on few cores.
    "OMP_WAIT_POLICY": "PASSIVE",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # glibc hands every large tensor back to the kernel and asks for it again: half of a small model's training step.
    "MALLOC_MMAP_THRESHOLD_": str(2_000_000_000),
    "MALLOC_TRIM_THRESHOLD_": str(8_000_000_000),
    "MALLOC_TOP_PAD_": str(64 << 20),
    "MALLOC_ARENA_MAX": "1",
}


def prepare() -> None:
    """Set it. Called before Ray is imported, because Ray reads some of it then; a user's own thread settings stay."""
    for name, value in QUIET.items():
        env.export(name, value, override=True)
    for name, value in CHILDREN.items():
        env.export(name, value)
