"""Which packed tokens attend together: a pure plan of index tensors, made once per batch and used by every layer."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

KEY_BLOCK = 64
"""The keys of a sequence are padded with invisible ones to a multiple of this; softmax then changes no bit."""
QUERY_BLOCK = 512
"""Longer sequences attend in blocks of this many queries: half the work, a bounded score matrix, the same bits."""
GROUP_ELEMENTS = 1 << 24
"""Most scores (per key-value head) of one group."""


@dataclass(frozen=True, slots=True)
class SegmentGroup:
    """Segments that need the same number of key blocks, attended as one padded batch.

    width: queries per segment after padding. keys: keys per segment after padding, a multiple of 64.
    query_tokens `[n]`: packed positions of the queries; query_places `[n]`: their rows in `[batch * width]`.
    key_tokens, key_places: the same for keys in `[batch * keys]`. dead `[1, 1, rows, keys]`: True where invisible.
    """

    batch: int
    width: int
    keys: int
    query_tokens: Tensor
    query_places: Tensor
    key_tokens: Tensor
    key_places: Tensor
    dead: Tensor


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """Layout of sequences that start at position 0; `num_tokens` may exceed their sum: that padding attends nothing."""

    num_tokens: int
    positions: Tensor
    groups: tuple[SegmentGroup, ...]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Queries `[start, end)` of a sequence whose first token lies at `offset`."""

    offset: int
    start: int
    end: int


def plan_layout(
    lengths: Sequence[int], *, group_size: int, row_multiple: int, device: torch.device | str
) -> PackedLayout:
    """Layout of `lengths` tokens per sequence, in this order.

    group_size: query heads per key-value head. row_multiple: the token count is padded to a multiple of it.
    """
    total = sum(lengths)
    padded = total + -total % row_multiple
    buckets: dict[int, list[_Piece]] = defaultdict(list)
    offset = 0
    for length in lengths:
        for start in range(0, length, QUERY_BLOCK):
            end = min(start + QUERY_BLOCK, length)
            buckets[-(-end // KEY_BLOCK)].append(_Piece(offset, start, end))
        offset += length
    positions = torch.cat([torch.arange(n) for n in lengths] + [torch.zeros(padded - total, dtype=torch.long)])
    groups = [
        _group(pieces[first : first + size], blocks * KEY_BLOCK, group_size, device)
        for blocks, pieces in sorted(buckets.items())
        for size in [max(1, GROUP_ELEMENTS // (blocks * KEY_BLOCK * group_size * max(p.end - p.start for p in pieces)))]
        for first in range(0, len(pieces), size)
    ]
    return PackedLayout(num_tokens=padded, positions=positions.to(device), groups=tuple(groups))


def _group(pieces: Sequence[_Piece], keys: int, group_size: int, device: torch.device | str) -> SegmentGroup:
    width = max(p.end - p.start for p in pieces)
    start = pieces[0].start
    return SegmentGroup(
        batch=len(pieces),
        width=width,
        keys=keys,
        query_tokens=torch.cat([torch.arange(p.offset + p.start, p.offset + p.end) for p in pieces]).to(device),
        query_places=torch.cat([torch.arange(i * width, i * width + p.end - p.start) for i, p in enumerate(pieces)]).to(
            device
        ),
        key_tokens=torch.cat([torch.arange(p.offset, p.offset + p.end) for p in pieces]).to(device),
        key_places=torch.cat([torch.arange(i * keys, i * keys + p.end) for i, p in enumerate(pieces)]).to(device),
        dead=invisible(torch.tensor([start]), width=width, keys=keys, group_size=group_size).to(device),
    )


def invisible(starts: Tensor, *, width: int, keys: int, group_size: int) -> Tensor:
    """`[batch, 1, rows, keys]`, True where a key lies after its query; rows = width * group_size up to a multiple of 4.

    starts `[batch]`: position of each segment's first query. Rows of padding see key 0, so that no row is empty.
    """
    last = (starts[:, None] + torch.arange(width)).repeat_interleave(group_size, 1)
    last = torch.nn.functional.pad(last, (0, -last.shape[1] % 4))
    return torch.arange(keys) > last[:, None, :, None]
