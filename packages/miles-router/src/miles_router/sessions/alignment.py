"""The proof that a sample's ids are what the engine was given and what it sampled: a cursor that consumes them all."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from miles_core.errors import SessionError

MAX_TRIM = 1
"""Ids at the end of an output that may be missing from the sequence: a stop that gave way to the template's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What the engine sampled after a prompt. start: length of that prompt. prompt_digest: `digest_of` its ids."""

    start: int
    ids: tuple[int, ...]
    prompt_digest: bytes


@dataclass(frozen=True, slots=True)
class Placed:
    """Where an output lies in the sequence, and how many of its last ids do not."""

    start: int
    end: int
    trimmed: int


def digest_of(ids: Sequence[int] | NDArray[np.int32]) -> bytes:
    """One value for a sequence of token ids."""
    return bytes(xxhash.xxh3_128_digest(np.asarray(ids, dtype="<i4").tobytes()))


def align(
    ids: Sequence[int] | NDArray[np.int32], outputs: Sequence[Output], *, may_trim: Collection[int]
) -> list[Placed]:
    """Find each output in the accumulated ids, greedily and in order; SessionError 422 when anything does not fit.

    An output begins where its prompt ended, and what stands before it is exactly that prompt. It may lack its last id,
    if that is one of `may_trim`. After the last output no id is left.
    """
    sequence = np.asarray(ids, dtype="<i4")
    hashed = xxhash.xxh3_128()
    cursor = done = 0
    placed = []
    for number, output in enumerate(outputs):
        if not cursor <= output.start <= len(sequence):
            raise _error(f"output {number} begins at {output.start}, expected {cursor} to {len(sequence)}")
        hashed.update(sequence[done : output.start].tobytes())
        done = output.start
        if hashed.digest() != output.prompt_digest:
            raise _error(f"the {output.start} ids before output {number} are not those that the engine was given")
        matched = _common(np.asarray(output.ids, dtype="<i4"), sequence[output.start :])
        trimmed = output.ids[matched:]
        if len(trimmed) > MAX_TRIM or any(token not in may_trim for token in trimmed):
            raise _error(f"{len(trimmed)} ids of output {number} are not in the sequence")
        cursor = output.start + matched
        placed.append(Placed(output.start, cursor, len(trimmed)))
    if cursor != len(sequence):
        raise _error(f"{len(sequence) - cursor} ids follow the last output")
    return placed


def _common(one: NDArray[np.int32], other: NDArray[np.int32]) -> int:
    length = min(len(one), len(other))
    different = np.nonzero(one[:length] != other[:length])[0]
    return int(different[0]) if len(different) else length


def _error(what: str) -> SessionError:
    return SessionError(f"samples cannot be assembled: {what}.", status=422)
