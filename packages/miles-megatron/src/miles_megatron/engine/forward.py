"""One step of the model over segments of requests whose keys and values lie in slots."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from miles_megatron.engine.cache import SlotCache
from miles_megatron.models.attention import group_rows, probabilities, ungroup_rows, weigh
from miles_megatron.models.layout import KEY_BLOCK, invisible
from miles_megatron.models.linear import ROW_MULTIPLE


@dataclass(frozen=True, slots=True)
class Piece:
    """Token ids to compute for a slot that already holds `start` tokens."""

    slot: int
    start: int
    ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class _Batch:
    """Pieces attended as one padded batch over slots `[first, first + count)`.

    tokens: `[n]`, their packed positions; None for all of `[begin, begin + n)` with nothing to pad.
    places `[n]`: their rows in `[count * width]`. dead: 0 where a key is visible, -inf where not.
    """

    first: int
    count: int
    width: int
    keys: int
    begin: int
    size: int
    places: Tensor | None
    dead: Tensor


class StepAttend:
    """Writes the step's keys and values into the cache, then attends over each slot; see `models.attention.Attend`."""

    def __init__(self, pieces: Sequence[Piece], cache: SlotCache, *, group_size: int) -> None:
        device = cache.keys.device
        self._cache = cache
        self._group_size = group_size
        slots = [piece.slot for piece in pieces for _ in piece.ids]
        positions = [piece.start + i for piece in pieces for i in range(len(piece.ids))]
        self.num_tokens = len(slots)
        self.positions = torch.tensor(positions, device=device)
        self._rows = cache.rows(torch.tensor(slots, device=device), self.positions)
        self._batches = self._plan(pieces)

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """`[tokens, heads, d]`; rows behind the step's tokens are padding and stay 0."""
        n, heads = self.num_tokens, query.shape[1]
        self._cache.write(layer, self._rows, key[:n], value[:n])
        out: Tensor | None = None
        scaled = query * scale
        for batch in self._batches:
            slots = slice(batch.first, batch.first + batch.count)
            keys = self._cache.keys[layer, slots, :, : batch.keys]
            values = self._cache.values[layer, slots, :, : batch.keys]
            rows = group_rows(self._spread(scaled, batch), key.shape[1])
            found = weigh(probabilities(rows, keys, batch.dead), values)
            flat = ungroup_rows(found, batch.width, heads).flatten(0, 1)
            flat = flat if batch.places is None else flat[batch.places]
            if batch.size == query.shape[0]:
                return flat
            out = torch.zeros_like(query) if out is None else out
            out[batch.begin : batch.begin + batch.size] = flat
        return torch.zeros_like(query) if out is None else out

    def _plan(self, pieces: Sequence[Piece]) -> list[_Batch]:
        """Single tokens share one batch over the slots they span; each longer piece has one of its own."""
        singles = [piece for piece in pieces if len(piece.ids) == 1]
        if pieces[: len(singles)] != singles:
            raise ValueError("expected pieces of one token before longer ones.")
        batches = [self._decode_batch(singles)] if singles else []
        begin = len(singles)
        for piece in pieces[len(singles) :]:
            size = len(piece.ids)
            starts = torch.tensor([piece.start])
            batches.append(self._batch(piece.slot, 1, starts, piece.start + size, begin, size, None))
            begin += size
        return batches

    def _decode_batch(self, pieces: Sequence[Piece]) -> _Batch:
        first, last = min(p.slot for p in pieces), max(p.slot for p in pieces)
        starts = torch.zeros(last - first + 1, dtype=torch.long)
        places = torch.tensor([p.slot - first for p in pieces])
        starts[places] = torch.tensor([p.start for p in pieces])
        dense = places.tolist() == list(range(last - first + 1))
        longest = max(p.start for p in pieces) + 1
        return self._batch(first, last - first + 1, starts, longest, 0, len(pieces), None if dense else places)

    def _batch(
        self, first: int, count: int, starts: Tensor, longest: int, begin: int, size: int, places: Tensor | None
    ) -> _Batch:
        device = self._rows.device
        keys = -(-longest // KEY_BLOCK) * KEY_BLOCK
        width = 1 if count > 1 else size
        dead = invisible(starts, width=width, keys=keys, group_size=self._group_size)
        hidden = torch.zeros(dead.shape, dtype=self._cache.keys.dtype).masked_fill_(dead, float("-inf")).to(device)
        where = None if places is None else places.to(device)
        return _Batch(first, count, width, keys, begin, size, where, hidden)

    @staticmethod
    def _spread(query: Tensor, batch: _Batch) -> Tensor:
        rows = query[batch.begin : batch.begin + batch.size]
        if batch.places is not None:
            rows = rows.new_zeros(batch.count * batch.width, *rows.shape[1:]).index_copy_(0, batch.places, rows)
        return rows.view(batch.count, batch.width, *rows.shape[1:])


class Decoder(Protocol):
    """Computes hidden states of a step and logits of some of its rows."""

    def hidden(self, ids: Tensor, positions: Tensor, attend: StepAttend) -> Tensor:
        """`[tokens] -> [tokens, hidden]`, tokens a multiple of 16."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """`[rows, hidden] -> [rows, vocab]`."""
        ...


class ModelDecoder:
    """The transformers model itself, with the packed attention put in."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def hidden(self, ids: Tensor, positions: Tensor, attend: StepAttend) -> Tensor:
        """See `Decoder`."""
        hidden = self._model(
            input_ids=ids[None], position_ids=positions[None], use_cache=False, attend=attend, hidden_only=True
        )
        return hidden[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Decoder`."""
        return self._model.lm_head(hidden)


def step(decoder: Decoder, pieces: Sequence[Piece], cache: SlotCache, *, group_size: int) -> Tensor:
    """Compute the pieces, single tokens first, and return the hidden states `[tokens, hidden]` in their order."""
    attend = StepAttend(pieces, cache, group_size=group_size)
    missing = -attend.num_tokens % ROW_MULTIPLE
    ids = torch.tensor([i for piece in pieces for i in piece.ids] + [0] * missing, device=cache.keys.device)
    positions = torch.nn.functional.pad(attend.positions, (0, missing))
    return decoder.hidden(ids, positions, attend)[: attend.num_tokens]
