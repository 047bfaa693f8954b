"""The log's files: what is whole comes back, what is torn or damaged is told from it, whatever byte was hit."""

import asyncio
import os
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_core.errors import RecordError, SessionError
from miles_router.sessions.log.compaction import plan_compaction, rewrite
from miles_router.sessions.log.config import LogConfig
from miles_router.sessions.log.frames import Damage, Frame, frame, scan, session_hash
from miles_router.sessions.log.records import Kind, Record, decode
from miles_router.sessions.log.segments import Segment, SegmentLog
from miles_router.sessions.log.shards import ShardedLog

PAYLOADS = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.binary(max_size=60)), min_size=1, max_size=6)


def file_of(entries) -> tuple[bytes, list[int]]:
    """The bytes of a file, and where each frame ends."""
    data, ends = b"", []
    for session, payload in entries:
        data += frame(session, payload)
        ends.append(len(data))
    return data, ends


def whole(data) -> list[bytes]:
    return [bytes(piece.payload) for piece in scan(data) if isinstance(piece, Frame)]


def damage(data) -> list[Damage]:
    return [piece for piece in scan(data) if isinstance(piece, Damage)]


def test_the_head_of_a_frame_is_as_documented():
    data = frame("s", b"xyz")
    assert data[:4] == b"MSLF"
    assert data[4:6] == b"\x01\x00"
    assert data[8:12] == (3).to_bytes(4, "little")
    assert data[12:20] == session_hash("s").to_bytes(8, "little")
    assert len(data) == 32 + 3


@settings(max_examples=80, deadline=None)
@given(PAYLOADS, st.data())
def test_a_file_cut_anywhere_keeps_every_frame_before_the_cut(entries, data):
    whole_file, ends = file_of(entries)
    cut = data.draw(st.integers(0, len(whole_file)))
    kept = [payload for (_, payload), end in zip(entries, ends, strict=True) if end <= cut]
    assert whole(whole_file[:cut]) == kept
    assert [piece.tail for piece in damage(whole_file[:cut])] == ([] if cut in (0, *ends) else [True])


@settings(max_examples=150, deadline=None)
@given(PAYLOADS, st.data())
def test_a_changed_byte_costs_the_frame_it_lies_in_and_no_other(entries, data):
    file, ends = file_of(entries)
    place = data.draw(st.integers(0, len(file) - 1))
    changed = bytearray(file)
    changed[place] ^= data.draw(st.integers(1, 255))
    hit = next(number for number, end in enumerate(ends) if place < end)
    survivors = [payload for number, (_, payload) in enumerate(entries) if number != hit]
    assert whole(bytes(changed)) == survivors
    (found,) = damage(bytes(changed))
    assert found.start == (0 if hit == 0 else ends[hit - 1])
    assert found.tail is (hit == len(entries) - 1)
    if place >= found.start + 32:  # the head is whole and names the session
        assert found.session == session_hash(entries[hit][0])


def test_a_tail_of_zeros_as_a_crash_of_the_machine_leaves_it_is_a_tail():
    data = frame("a", b"one")
    (found,) = damage(data + bytes(5000))
    assert (found.start, found.end, found.tail) == (len(data), len(data) + 5000, True)


def record(session, number, kind=Kind.TURN, **arrays) -> Record:
    return Record(
        kind=kind, session_id=session, number=number, at=1.5, fields={"x": [1, None, "\u00fc"]}, arrays=arrays
    )


def test_a_record_comes_back_with_its_arrays_bit_for_bit():
    logprobs = np.array([-0.1, -1e-300, -0.0])
    one = record("s", 3, ids=np.array([1, 2], np.int32), logprobs=logprobs, routing=np.zeros((2, 3, 2), np.uint8))
    two = decode(memoryview(one.encode()))
    assert (two.kind, two.session_id, two.number, two.at, two.fields) == (one.kind, "s", 3, 1.5, one.fields)
    assert two.arrays["logprobs"].tobytes() == logprobs.tobytes()
    assert two.arrays["ids"].tolist() == [1, 2]
    assert two.arrays["routing"].shape == (2, 3, 2)


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.replace(b'"<i4"', b'"|O8"'),
        lambda header: header.replace(b"[2]", b"[9]"),
        lambda header: header.replace(b"turn", b"tarn"),
        lambda header: header.replace(b'"number"', b'"nomber"'),
        lambda header: b"\xff\xff\xff\x7f" + header[4:],
    ],
)
def test_bytes_that_are_no_record_are_refused(change):
    payload = change(record("s", 0, ids=np.array([1, 2], np.int32)).encode())
    with pytest.raises(RecordError):
        decode(memoryview(payload))


def test_segments_follow_each_other_and_are_read_in_order(tmp_path):
    log = SegmentLog(tmp_path, segment_bytes=4096)
    log.recover()
    for number in range(100):
        log.append(record("s", number, ids=np.arange(50, dtype=np.int32)))
    log.close(sync=True)
    assert len(list(tmp_path.glob("*.log"))) > 5
    again = SegmentLog(tmp_path, segment_bytes=4096)
    assert [r.number for r in again.recover().records] == list(range(100))
    again.append(record("s", 100))
    again.close(sync=False)
    last = SegmentLog(tmp_path, segment_bytes=4096)
    assert [r.number for r in last.recover().records] == list(range(101))
    last.close(sync=False)


def test_a_torn_tail_is_cut_off_and_the_log_goes_on_after_the_last_whole_record(tmp_path):
    log = SegmentLog(tmp_path, segment_bytes=1 << 20)
    log.recover()
    for number in range(3):
        log.append(record("s", number))
    log.close(sync=False)
    (path,) = tmp_path.glob("*.log")
    data = path.read_bytes()
    path.write_bytes(data[:-5])
    log = SegmentLog(tmp_path, segment_bytes=1 << 20)
    found = log.recover()
    assert [r.number for r in found.records] == [0, 1]
    assert found.torn == len(data) // 3 - 5
    log.append(record("s", 2))
    log.close(sync=False)
    assert path.read_bytes() == data


def test_a_last_record_that_was_whole_and_changed_is_cut_off_and_named(tmp_path):
    log = SegmentLog(tmp_path, segment_bytes=1 << 20)
    log.recover()
    for session in "ab":
        log.append(record(session, 0))
    log.close(sync=False)
    (path,) = tmp_path.glob("*.log")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    log = SegmentLog(tmp_path, segment_bytes=1 << 20)
    found = log.recover()
    assert [r.session_id for r in found.records] == ["a"]
    assert [damage.session for damage in found.damage] == [session_hash("b")]
    log.close(sync=False)


def test_a_shard_that_was_given_back_and_taken_again_is_synced_anew(tmp_path, monkeypatch):
    synced, real = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(file), real(file)))

    async def main():
        log = ShardedLog(LogConfig(folder=tmp_path, fsync="always"))
        for number in range(2):
            await log.acquire(0, lambda found: None)
            for _ in range(3 - number):
                position = log.append(Kind.FAILED, "s")
            await log.durable("s", position)
            assert len(synced) == 1
            await log.durable("s", position)  # nothing is left to do
            assert len(synced) == 1
            await log.release(0)
            synced.clear()
        with pytest.raises(SessionError, match="another process"):
            log.append(Kind.FAILED, "s")

    asyncio.run(main())


def test_a_folder_has_one_owner_until_that_one_ends_even_by_a_kill(tmp_path):
    code = (
        "import sys, time, pathlib; from miles_router.sessions.log.segments import SegmentLog;"
        f"log = SegmentLog(pathlib.Path({str(tmp_path)!r}), segment_bytes=4096); print('owned', flush=True);"
        "time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"owned\n"
        with pytest.raises(SessionError, match=f'"pid":{process.pid}') as refused:
            SegmentLog(tmp_path, segment_bytes=4096)
        assert refused.value.status == 423
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()
    SegmentLog(tmp_path, segment_bytes=4096).close(sync=False)


def test_a_record_that_could_not_be_written_whole_leaves_nothing(tmp_path, monkeypatch):
    log = SegmentLog(tmp_path, segment_bytes=1 << 20)
    log.recover()
    log.append(record("s", 0))
    real, calls = os.write, []

    def full(file, data):
        calls.append(len(data))
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        return real(file, data[:10])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        log.append(record("s", 1))
    monkeypatch.undo()
    log.append(record("s", 2))
    log.close(sync=False)
    again = SegmentLog(tmp_path, segment_bytes=1 << 20)
    found = again.recover()
    assert [r.number for r in found.records] == [0, 2]
    assert found.damage == []
    again.close(sync=False)


def segment(number, *, ends=(), **held) -> Segment:
    sizes = Counter({session_hash(name): size for name, size in held.items()})
    marks = Counter({session_hash(name): 1 for name in ends})
    return Segment(number, None, sum(sizes.values()), sizes, marks)


@pytest.mark.parametrize(
    ("segments", "alive", "planned"),
    [
        ([segment(1, a=10, b=10)], "ab", []),
        ([segment(1, a=10, b=10)], "a", [(1, "a", "")]),
        ([segment(1, a=30, b=10)], "a", []),
        ([segment(1, a=10)], "", [(1, "", "")]),
        # The end of b in segment 2 stays while segment 1, which is not worth a rewrite, still holds records of b.
        ([segment(1, a=30, b=10), segment(2, b=1, c=5, ends="b")], "a", [(2, "", "b")]),
        # Once nothing of b is left before it, it goes.
        ([segment(1, a=10, b=30), segment(2, b=1, c=5, ends="b")], "a", [(1, "a", ""), (2, "", "")]),
        # Nothing but ends that must stay: no work again and again.
        ([segment(1, a=30, b=10), segment(2, b=1, ends="b")], "a", []),
        ([segment(1, a=30, b=10), segment(2, b=9, ends="b")], "a", [(2, "", "b")]),
    ],
)
def test_what_a_compaction_rewrites(segments, alive, planned):
    hashes = {session_hash(name): name for name in "abc"}
    found = plan_compaction(segments, {session_hash(name) for name in alive})
    assert [
        (part.number, *("".join(sorted(hashes[h] for h in kept)) for kept in (order.alive, order.tombs)))
        for part, order in found
    ] == planned


def test_a_rewritten_segment_holds_the_living_and_the_needed_ends(tmp_path):
    log = SegmentLog(tmp_path, segment_bytes=1 << 20)
    log.recover()
    for session in "abcab":
        log.append(record(session, 0))
    log.append(record("b", 1, Kind.ENDED))
    log.append(record("c", 1, Kind.ENDED))
    log.rotate()
    first = log.segments[0]
    (path, hashed) = first.path, {name: session_hash(name) for name in "abc"}
    [(_, order)] = plan_compaction([segment(0, b=10, a=90), first], {hashed["a"]})[-1:]
    left = rewrite(order, sync=True)
    kept = [decode(piece.payload) for piece in scan(path.read_bytes())]
    assert [(r.session_id, r.kind) for r in kept] == [("a", Kind.TURN), ("a", Kind.TURN), ("b", Kind.ENDED)]
    assert left.size == path.stat().st_size
    assert not list(tmp_path.glob("*.tmp"))
    log.close(sync=False)
