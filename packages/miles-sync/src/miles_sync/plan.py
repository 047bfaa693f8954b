"""Which tensors travel together, and at which offsets: pure, lazy, without touching a byte of data."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from miles_core.errors import WeightSyncError

ALIGNMENT = 64
"""Bytes: offsets are multiples of it, so that every element type and vector load is aligned."""

_FUSED = re.compile(r"^(?P<owner>.+)\.(?:(?P<qkv>[qkv]_proj)|(?P<gate_up>(?:gate|up)_proj))\.[^.]+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One tensor and its place in a bucket. `shape` in elements; `nbytes` and `offset` in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Tensors that are sent at once. `nbytes`: from the first byte to the end of the last tensor."""

    slots: tuple[Slot, ...]
    nbytes: int


def fused_unit(name: str) -> str:
    """The unit of a Hugging Face name: engines that fuse q, k, v or gate, up load such tensors in one go."""
    match = _FUSED.match(name)
    if match is None:
        return name
    return f"{match['owner']}.{'qkv' if match['qkv'] else 'gate_up'}"


def plan_buckets(
    slots: Iterable[Slot], *, bucket_bytes: int, unit_of: Callable[[str], str] = fused_unit
) -> Iterator[Bucket]:
    """Buckets in the given order of tensors, each as full as whole units allow, at most `bucket_bytes` long.

    A unit is never split: one that is larger than the budget travels alone. `slots` is read no further than the first
    tensor after the bucket that is yielded. The tensors of a unit must follow each other; a unit that comes back
    later is a WeightSyncError naming the tensor. Offsets of the given slots are ignored.
    """
    if bucket_bytes <= 0:
        raise WeightSyncError(f"expected bucket_bytes above 0, found {bucket_bytes}.")
    bucket = Bucket(slots=(), nbytes=0)
    for unit in _units(slots, unit_of):
        larger = _append(bucket, unit)
        if bucket.slots and larger.nbytes > bucket_bytes:
            yield bucket
            larger = _append(Bucket(slots=(), nbytes=0), unit)
        bucket = larger
    if bucket.slots:
        yield bucket


def _units(slots: Iterable[Slot], unit_of: Callable[[str], str]) -> Iterator[list[Slot]]:
    closed: set[str] = set()
    current: str | None = None
    members: list[Slot] = []
    for slot in slots:
        unit = unit_of(slot.name)
        if unit != current:
            if members:
                yield members
            if unit in closed:
                raise WeightSyncError(
                    f"tensor {slot.name}: its unit {unit} was already sent; give a unit's tensors one after another."
                )
            closed.add(unit)
            current, members = unit, []
        members.append(slot)
    if members:
        yield members


def _append(bucket: Bucket, unit: Iterable[Slot]) -> Bucket:
    placed = list(bucket.slots)
    end = bucket.nbytes
    for slot in unit:
        offset = -(-end // ALIGNMENT) * ALIGNMENT
        placed.append(replace(slot, offset=offset))
        end = offset + slot.nbytes
    return Bucket(slots=tuple(placed), nbytes=end)
