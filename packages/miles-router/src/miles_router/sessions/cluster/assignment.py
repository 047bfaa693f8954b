"""Which process owns which shard: decided without doing anything."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from miles_router.ring import Ring


@dataclass(frozen=True, slots=True)
class Moves:
    """What has to happen next. release: by the process that holds the shard; acquire: by the process named."""

    release: Mapping[str, tuple[int, ...]]
    acquire: Mapping[str, tuple[int, ...]]


def assign(num_shards: int, ring: Ring, alive: Collection[str]) -> Mapping[int, str]:
    """The process of each shard: the first on the ring that is alive. Empty when none is."""
    found = {}
    for shard in range(num_shards):
        owner = next((name for name in ring.owners(b"shard-%d" % shard) if name in alive), None)
        if owner is not None:
            found[shard] = owner
    return found


def plan_moves(wanted: Mapping[int, str], held: Mapping[int, str]) -> Moves:
    """From who holds to who should. A shard that another process still holds is released first, acquired next time."""
    release = {shard: held[shard] for shard, name in wanted.items() if held.get(shard, name) != name}
    acquire = {shard: name for shard, name in wanted.items() if shard not in held}
    return Moves(dict(_by_process(release)), dict(_by_process(acquire)))


def _by_process(shards: Mapping[int, str]) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name in sorted(set(shards.values())):
        yield name, tuple(sorted(shard for shard, owner in shards.items() if owner == name))
