"""Keys and values of running requests, one slot each, and pages of finished ones."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from miles_megatron.models.layout import KEY_BLOCK

PAGE = 16
"""Tokens per page of the prefix store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShape:
    """Sizes of a model's cache. length: tokens per slot, a multiple of 64."""

    layers: int
    kv_heads: int
    head_dim: int
    slots: int
    length: int
    pages: int

    @staticmethod
    def slot_length(context_length: int) -> int:
        """Tokens of a slot that holds `context_length`."""
        return context_length + -context_length % KEY_BLOCK


class SlotCache:
    """`keys` and `values` `[layers, slots, kv_heads, length, head_dim]`, zero where nothing was written.

    Memory is touched, and so taken, only as slots fill. `release` puts zeros back: a key that no query sees must be
    finite, or its weight of 0 makes NaN.
    """

    def __init__(self, shape: CacheShape, *, dtype: torch.dtype, device: str) -> None:
        self.shape = shape
        size = (shape.layers, shape.slots, shape.kv_heads, shape.length, shape.head_dim)
        self.keys = _zeros(size, dtype, device)
        self.values = _zeros(size, dtype, device)
        pages = (shape.layers, shape.pages, shape.kv_heads, PAGE, shape.head_dim)
        self._page_keys = _zeros(pages, dtype, device)
        self._page_values = _zeros(pages, dtype, device)
        self._flat_keys = [self._flat(self.keys[layer]) for layer in range(shape.layers)]
        self._flat_values = [self._flat(self.values[layer]) for layer in range(shape.layers)]

    @staticmethod
    def _flat(layer: Tensor) -> Tensor:
        return layer.view(-1, layer.shape[-1])

    def rows(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Rows of a flattened layer for tokens `[n]`, all heads: `[n * kv_heads]`."""
        heads = torch.arange(self.shape.kv_heads, device=slots.device)
        base = slots[:, None] * self.shape.kv_heads + heads
        return (base * self.shape.length + positions[:, None]).flatten()

    def write(self, layer: int, rows: Tensor, key: Tensor, value: Tensor) -> None:
        """Put `[n, kv_heads, head_dim]` into `rows` of a layer."""
        self._flat_keys[layer].index_copy_(0, rows, key.reshape(-1, self.shape.head_dim))
        self._flat_values[layer].index_copy_(0, rows, value.reshape(-1, self.shape.head_dim))

    def release(self, slot: int, length: int) -> None:
        """Forget a slot's first `length` tokens."""
        self.keys[:, slot, :, :length] = 0
        self.values[:, slot, :, :length] = 0

    def move(self, source: int, target: int, length: int) -> None:
        """Take a slot's first `length` tokens to an empty slot."""
        for tensor in (self.keys, self.values):
            tensor[:, target, :, :length] = tensor[:, source, :, :length]
        self.release(source, length)

    def load(self, slot: int, pages: Sequence[int]) -> None:
        """Copy pages to the start of a slot."""
        if not pages:
            return
        index = torch.tensor(pages, device=self.keys.device)
        for pool, cache in ((self._page_keys, self.keys), (self._page_values, self.values)):
            found = pool.index_select(1, index).transpose(1, 2).flatten(2, 3)
            cache[:, slot, :, : len(pages) * PAGE] = found

    def save(self, slot: int, places: Sequence[tuple[int, int]]) -> None:
        """Copy page-sized pieces of a slot, `(number in the slot, page)` each, to the store."""
        if not places:
            return
        pieces = torch.tensor([piece for piece, _ in places], device=self.keys.device)
        pages = torch.tensor([page for _, page in places], device=self.keys.device)
        for pool, cache in ((self._page_keys, self.keys), (self._page_values, self.values)):
            parts = cache[:, slot].unflatten(2, (-1, PAGE)).index_select(2, pieces)
            pool.index_copy_(1, pages, parts.transpose(1, 2))


def _zeros(size: Sequence[int], dtype: torch.dtype, device: str) -> Tensor:
    """Zeros; on a CPU from numpy, which leaves the pages to the system until they are written, as torch does not."""
    count = torch.Size(size).numel() * dtype.itemsize
    if torch.device(device).type != "cpu" or not count:
        return torch.zeros(size, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(count, dtype=np.uint8)).view(dtype).view(size)
