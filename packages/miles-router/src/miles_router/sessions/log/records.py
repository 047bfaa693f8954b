"""Records: what happened to a session, as a JSON header with raw arrays behind it. Nothing is ever unpickled.

A payload is the header's length (u32, little-endian), the header (UTF-8 JSON) and the arrays' bytes in the order of the
header's `arrays`: `[name, dtype, shape]`, little-endian.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from miles_core.errors import RecordError

DTYPES = frozenset({"|u1", "<u2", "<u4", "<i4", "<i8", "<f8"})


class Kind(StrEnum):
    """What a record tells."""

    OPENED = "opened"
    """A session began."""
    TURN = "turn"
    """An answer was recorded."""
    DELIVERY = "delivery"
    """A caller took the answer of a turn, or left without it."""
    KEY = "key"
    """A further Idempotency-Key names a turn."""
    FAILED = "failed"
    """An attempt ended without a turn."""
    ENDED = "ended"
    """The session was deleted or has expired; its records may go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One event of one session. number: its place among the session's records, from 0 on, without gaps.

    at: seconds since the epoch. fields: JSON values. arrays: numbers by name.
    """

    kind: Kind
    session_id: str
    number: int
    at: float
    fields: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def encode(self) -> bytes:
        """The record as a payload."""
        arrays = {name: _little(array) for name, array in self.arrays.items()}
        header = orjson.dumps(
            {
                "kind": self.kind.value,
                "session": self.session_id,
                "number": self.number,
                "at": self.at,
                "fields": dict(self.fields),
                "arrays": [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()],
            }
        )
        return b"".join([len(header).to_bytes(4, "little"), header, *(array.tobytes() for array in arrays.values())])


def decode(payload: memoryview) -> Record:
    """The record in a payload; RecordError when it holds anything else."""
    length = int.from_bytes(payload[:4], "little")
    try:
        header = orjson.loads(payload[4 : 4 + length])
        return Record(
            kind=Kind(header["kind"]),
            session_id=header["session"],
            number=header["number"],
            at=header["at"],
            fields=header["fields"],
            arrays=_arrays(header["arrays"], payload[4 + length :]),
        )
    except RecordError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"expected a record of the session log, found something else ({error!r}).") from None


def _arrays(entries: Iterable[tuple[str, str, list[int]]], data: memoryview) -> dict[str, NDArray[Any]]:
    arrays = {}
    place = 0
    for name, dtype, shape in entries:
        if dtype not in DTYPES:
            raise RecordError(f"expected an array of one of {', '.join(sorted(DTYPES))}, found {dtype!r}.")
        count = math.prod(shape)
        nbytes = count * np.dtype(dtype).itemsize
        if min(shape, default=0) < 0 or place + nbytes > len(data):
            raise RecordError(f"expected array {name!r} of shape {shape} inside its record, found its end.")
        arrays[name] = np.frombuffer(data, dtype=dtype, count=count, offset=place).reshape(shape)
        place += nbytes
    return arrays


def _little(array: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
