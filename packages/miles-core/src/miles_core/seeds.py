"""The seed tree: every random choice of a run has a path, and the path gives the seed."""

import xxhash


def derive(seed: int, *path: str | int) -> int:
    """Seed of a node of the tree, in [0, 2**63): xxh3-64 of the run seed and the path, halved.

    `derive(run_seed, "rollout", step, prompt_id, index)` does not depend on order, timing or process.
    """
    # Each part carries its kind and length, so that no two paths spell the same text.
    text = str(int(seed)) + "".join(
        f"/s{len(part)}:{part}" if isinstance(part, str) else f"/i{int(part)}" for part in path
    )
    return xxhash.xxh3_64_intdigest(text.encode()) >> 1
