"""Weights through POSIX shared memory: for engines on the trainer's machine."""

from collections.abc import Iterable, Iterator

from torch import Tensor

from miles_sync.buckets import read_buckets
from miles_sync.config import SharedMemoryConfig
from miles_sync.manifest import Manifest, TensorEntry
from miles_sync.orphans import remove_orphans
from miles_sync.parcel import Parcel
from miles_sync.plan import Bucket
from miles_sync.segment import Segment


class SharedMemoryTransport:
    """One segment per bucket, removed as soon as every engine has answered; a segment is never used twice.

    Extra memory: the tensors of one bucket, their segment, and the unit that opens the next bucket.
    """

    def __init__(self, config: SharedMemoryConfig) -> None:
        """Also removes segments that a killed sender left behind."""
        self._config = config
        remove_orphans()

    def parcels(self, weights: Iterable[tuple[str, Tensor]], version: int) -> Iterator[Parcel]:
        """A parcel per bucket."""
        for bucket, tensors in read_buckets(weights, bucket_bytes=self._config.bucket_bytes):
            with Segment(bucket.nbytes) as segment:
                manifest = _fill(segment, bucket, dict(tensors), version)
                del tensors
                yield Parcel(
                    route="/update_weights_from_shared_memory",
                    body=manifest.model_dump(mode="json"),
                    digests=manifest.digests,
                    nbytes=sum(entry.nbytes for entry in manifest.tensors),
                    echoes=True,
                )

    def settle(self, version: int) -> None:
        """Nothing outlives a push."""


def _fill(segment: Segment, bucket: Bucket, tensors: dict[str, Tensor], version: int) -> Manifest:
    entries = [
        TensorEntry(
            name=slot.name,
            dtype=slot.dtype,
            shape=slot.shape,
            offset=slot.offset,
            nbytes=slot.nbytes,
            digest=segment.write(tensors.pop(slot.name), slot.offset),
        )
        for slot in bucket.slots
    ]
    return Manifest(version=version, segment=segment.name, nbytes=bucket.nbytes, tensors=tuple(entries))
