"""Frames: how records lie in a segment file, so that torn and damaged ones are told from whole ones.

A frame is a head of 32 bytes and a payload. The head, little-endian: marker `MSLF`, version u16, flags u16 (0), payload
length u32, session u64 (xxh3-64 of its id), xxh3-64 of the payload, xxh32 of the 28 bytes before. A head that is whole
tells which session a damaged payload belonged to, and where the next frame begins.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import xxhash

MARKER = b"MSLF"
VERSION = 1
MAX_PAYLOAD = 1 << 30
"""A longer payload is not written."""
DAMAGED_PAYLOAD = "a damaged payload"
"""The reason of a frame of which every byte is there."""

_HEAD = struct.Struct("<4sHHIQQI")
_CHECKED = _HEAD.size - 4


@dataclass(frozen=True, slots=True)
class Frame:
    """A whole frame at bytes `start` to `end` of its file."""

    start: int
    end: int
    session: int
    payload: memoryview


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that hold no whole frame. session: whose record it was, where the head still tells; None otherwise.

    tail: nothing whole follows, as after a write that a crash cut short.
    """

    start: int
    end: int
    session: int | None
    tail: bool
    reason: str


def session_hash(session_id: str) -> int:
    """How heads name a session."""
    return int(xxhash.xxh3_64_intdigest(session_id.encode()))


def frame(session_id: str, payload: bytes) -> bytes:
    """The bytes of a frame."""
    if len(payload) > MAX_PAYLOAD:
        raise ValueError(f"expected a record of at most {MAX_PAYLOAD} bytes, found {len(payload)}.")
    head = _HEAD.pack(MARKER, VERSION, 0, len(payload), session_hash(session_id), xxhash.xxh3_64_intdigest(payload), 0)[
        :_CHECKED
    ]
    return head + xxhash.xxh32_intdigest(head).to_bytes(4, "little") + payload


def scan(data: bytes) -> Iterator[Frame | Damage]:
    """The frames of a file in order, and what lies between them where it is damaged."""
    view = memoryview(data)
    place = 0
    while place < len(view):
        found = _read(view, place)
        if isinstance(found, Frame):
            yield found
            place = found.end
            continue
        after = _next_whole(data, view, found.end if found.session is not None else place + 1)
        end = len(view) if after is None else after
        if found.session is not None and after is not None:
            end = min(found.end, end)
        yield Damage(place, end, found.session, after is None, found.reason)
        place = end


def _read(view: memoryview, start: int) -> Frame | Damage:
    head = view[start : start + _HEAD.size]
    if len(head) < _HEAD.size:
        return Damage(start, len(view), None, False, "a head that is cut off")
    marker, version, _, length, session, checksum, head_checksum = _HEAD.unpack(head)
    if marker != MARKER or xxhash.xxh32_intdigest(head[:_CHECKED]) != head_checksum:
        return Damage(start, start, None, False, "a damaged head")
    end = start + _HEAD.size + length
    if end > len(view):
        return Damage(start, len(view), session, False, "a payload that is cut off")
    payload = view[start + _HEAD.size : end]
    if xxhash.xxh3_64_intdigest(payload) != checksum:
        return Damage(start, end, session, False, DAMAGED_PAYLOAD)
    if version != VERSION:
        return Damage(start, end, session, False, f"a frame of version {version}, expected {VERSION}")
    return Frame(start, end, session, payload)


def _next_whole(data: bytes, view: memoryview, start: int) -> int | None:
    """Where the next frame with a whole head begins."""
    place = data.find(MARKER, start)
    while place >= 0:
        head = view[place : place + _HEAD.size]
        if len(head) == _HEAD.size and xxhash.xxh32_intdigest(head[:_CHECKED]) == _HEAD.unpack(head)[-1]:
            return place
        place = data.find(MARKER, place + 1)
    return None
