import os
import signal
import subprocess
import sys
import weakref

import pytest
import torch
import xxhash

from miles_core.errors import WeightSyncError
from miles_sync.orphans import remove_orphans
from miles_sync.receivers.shared_memory import open_manifest
from miles_sync.segment import Segment
from miles_sync.transports.shared_memory import SharedMemoryConfig, SharedMemoryTransport
from miles_sync.weights import DTYPES


def parcels(weights, bucket_bytes=1 << 20, version=1):
    return SharedMemoryTransport(SharedMemoryConfig(bucket_bytes=bucket_bytes)).parcels(weights, version)


def travelled(weights):
    return {name: tensor for parcel in parcels(weights) for name, tensor in open_manifest(parcel.body)}


def test_every_element_type_arrives_bit_for_bit():
    bits = torch.randint(0, 256, (6, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    weights = {name: (bits % 2 if name == "bool" else bits).view(dtype) for name, dtype in DTYPES.items()}
    arrived = travelled(weights.items())
    for name, tensor in weights.items():
        assert arrived[name].dtype == tensor.dtype
        assert arrived[name].shape == tensor.shape
        assert torch.equal(arrived[name].view(torch.uint8), tensor.view(torch.uint8))


def test_strided_tied_scalar_and_empty_tensors_arrive():
    base = torch.arange(24.0).reshape(4, 6)
    weights = {
        "transposed": base.t(),
        "sliced": base[::2, 1::2],
        "expanded": torch.tensor([3.0]).expand(2, 5),
        "embed": base,
        "lm_head": base,
        "scalar": torch.tensor(7.0),
        "empty": torch.zeros(0, 3),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    arrived = travelled(weights.items())
    assert list(arrived) == list(weights)
    for name, tensor in weights.items():
        assert torch.equal(arrived[name], tensor)
        assert arrived[name].is_contiguous()
        assert not arrived[name].requires_grad


def test_the_digest_is_xxh3_128_of_the_row_major_bytes():
    (parcel,) = (p for p in [next(parcels([("w", torch.tensor([[1, 2], [3, 4]], dtype=torch.int32).t())]))])
    expected = b"".join(n.to_bytes(4, sys.byteorder) for n in (1, 3, 2, 4))
    assert parcel.digests == {"w": xxhash.xxh3_128_hexdigest(expected)}


def test_a_manifest_has_the_contracts_shape():
    source = parcels([("a", torch.zeros(3)), ("b", torch.zeros(2, 2, dtype=torch.bfloat16))], version=7)
    body = next(source).body
    assert body == {
        "version": 7,
        "segment": body["segment"],
        "nbytes": 72,
        "tensors": [
            {
                "name": "a",
                "dtype": "float32",
                "shape": [3],
                "offset": 0,
                "nbytes": 12,
                "digest": xxhash.xxh3_128_hexdigest(b"\0" * 12),
            },
            {
                "name": "b",
                "dtype": "bfloat16",
                "shape": [2, 2],
                "offset": 64,
                "nbytes": 8,
                "digest": xxhash.xxh3_128_hexdigest(b"\0" * 8),
            },
        ],
    }
    source.close()


def test_what_arrived_outlives_the_segment_and_is_its_own(segments):
    source = parcels([("w", torch.ones(4))])
    ((_, tensor),) = open_manifest(next(source).body)
    source.close()
    assert segments() == set()
    tensor += 1
    assert tensor.tolist() == [2.0] * 4


def change(**fields):
    return lambda body: body.update(fields)


def change_tensor(**fields):
    return lambda body: body["tensors"][1].update(fields)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (
            change_tensor(digest="0" * 32),
            "tensor b: its bytes in segment have digest [0-9a-f]{32}, the manifest says 0{32}",
        ),
        (change_tensor(shape=[3]), r"tensor b: \[3\] of float32 takes 12 bytes, found 8"),
        (change_tensor(dtype="float64"), r"tensor b: \[2\] of float64 takes 16 bytes, found 8"),
        (change_tensor(dtype="object"), "tensor b: expected an element type among float64"),
        (change_tensor(offset=1 << 30), "tensor b: it ends at byte 1073741832 of a segment of 72"),
        (change_tensor(offset=0), "tensor b: its bytes overlap"),
        (change_tensor(offset=65), "tensor b: expected an offset divisible by 64, found 65"),
        (change_tensor(name="a"), "tensor a: expected each name once"),
        (change_tensor(shape=[-2]), "tensors.1.shape.0: Input should be greater than or equal to 0"),
        (change_tensor(extra=1), "tensors.1.extra: Extra inputs are not permitted"),
        (change(nbytes=1 << 20), "segment miles-w-.*: expected 1048576 bytes, found 4096"),
        (change(segment="miles-w-absent"), "segment miles-w-absent cannot be opened"),
        (change(segment="../../etc/passwd"), "segment: String should match pattern"),
        (change(segment="psm_other"), "segment: String should match pattern"),
        (change(tensors=[]), "tensors: .*at least 1 item"),
        (change(version="7"), "version: Input should be a valid integer"),
    ],
)
def test_a_manifest_that_does_not_hold_is_refused_by_name(spoil, reason):
    source = parcels([("a", torch.zeros(2)), ("b", torch.ones(2))])
    body = next(source).body
    spoil(body)
    with pytest.raises(WeightSyncError, match=reason):
        list(open_manifest(body))
    source.close()


def test_a_truncated_segment_is_refused_before_it_is_read():
    source = parcels([("a", torch.zeros(4096))])
    body = next(source).body
    os.truncate(f"/dev/shm/{body['segment']}", 8192)
    with pytest.raises(WeightSyncError, match="expected 16384 bytes, found 8192"):
        list(open_manifest(body))
    source.close()


def test_a_segment_larger_than_the_machines_shared_memory_is_an_error_not_a_signal(segments):
    with pytest.raises(WeightSyncError, match=r"cannot reserve \d+ bytes of shared memory"):
        Segment(1 << 50)
    assert segments() == set()


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        ([("a", torch.zeros(1)), ("a", torch.zeros(1))], "tensor a: expected each name once"),
        ([("a", [1.0])], "tensor a: expected a torch tensor, found list"),
        ([("", torch.zeros(1))], "expected a parameter name"),
        ([("a", torch.zeros(2, 2).to_sparse())], "tensor a: expected dense storage"),
        ([("a", torch.zeros(2, device="meta"))], "tensor a: expected dense storage"),
        ([("a", torch.zeros(2, dtype=torch.complex64))], "tensor a: expected an element type among"),
    ],
)
def test_tensors_that_cannot_travel_are_named(weights, reason, segments):
    with pytest.raises(WeightSyncError, match=reason):
        list(parcels(weights))
    assert segments() == set()


def test_a_segment_whose_sender_was_killed_is_removed_and_a_living_ones_is_kept(segments):
    code = "from miles_sync.segment import Segment; s = Segment(64); print(s.name, flush=True); input()"
    sender = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    name = sender.stdout.readline().strip()
    assert name not in remove_orphans()
    assert os.path.exists(f"/dev/shm/{name}")
    sender.send_signal(signal.SIGKILL)
    sender.communicate(timeout=10)
    with Segment(64) as mine:
        assert name in remove_orphans()
        assert not os.path.exists(f"/dev/shm/{name}")
        assert segments() == {mine.name}


def test_extra_memory_stays_below_two_buckets_whatever_the_models_size(segments):
    bucket_bytes, tensor_bytes, live = 64_000, 16_000, []
    peak = 0

    def measure():
        held = sum(1 for ref in live if ref() is not None) * tensor_bytes
        shared = sum(os.stat(f"/dev/shm/{name}").st_size for name in segments())
        return held + shared

    def weights():
        nonlocal peak
        for number in range(60):
            tensor = torch.full((tensor_bytes // 4,), float(number))
            live.append(weakref.ref(tensor))
            peak = max(peak, measure())
            yield f"layer.{number}", tensor
            del tensor

    for parcel in parcels(weights(), bucket_bytes=bucket_bytes):
        peak = max(peak, measure())
        assert parcel.nbytes <= bucket_bytes
    # one bucket of tensors, its segment, and the two tensors around the next bucket's border
    assert bucket_bytes < peak <= 2 * bucket_bytes + 2 * tensor_bytes + 4096
