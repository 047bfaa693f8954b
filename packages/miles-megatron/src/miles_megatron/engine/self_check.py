"""Checks at start, on this machine's own kernels, that cached steps have the bits of the packed forward."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from miles_megatron.engine.cache import SlotCache
from miles_megatron.engine.forward import Decoder, Piece, step
from miles_megatron.models.packed import packed_forward

LENGTHS = (270, 5, 133, 70)
PROMPTS = (250, 1, 120, 60)
"""Tokens of each sequence computed at once; the rest follow one by one, in one batch."""


def gives_packed_bits(decoder: Decoder, model: nn.Module, cache: SlotCache, *, vocab_size: int) -> bool:
    """Whether prefill and decoding of a few sequences through the cache equal the packed forward, bit for bit.

    It uses the first four slots (or as many as there are) and leaves them empty.
    """
    group_size = model.config.num_attention_heads // model.config.num_key_value_heads
    count = min(len(LENGTHS), cache.shape.slots)
    limits = [min(length, cache.shape.length) for length in LENGTHS[:count]]
    rows = [[(7 * i + 13 * place + i * i) % vocab_size for i in range(n)] for place, n in enumerate(limits)]
    ids = torch.tensor([i for row in rows for i in row], device=cache.keys.device)
    expected = packed_forward(model, ids, limits).split(limits)
    try:
        return all(
            torch.equal(found, expected[place][position])
            for place, position, found in _steps(decoder, rows, cache, group_size)
        )
    finally:
        for slot, length in enumerate(limits):
            cache.release(slot, length)


def _steps(
    decoder: Decoder, rows: Sequence[Sequence[int]], cache: SlotCache, group_size: int
) -> list[tuple[int, int, Tensor]]:
    """(sequence, position, logits) of each step's last token: prompts one after the other, then tokens together."""
    found = []
    done = [min(prompt, len(row) - 1) for prompt, row in zip(PROMPTS, rows, strict=False)]
    for slot, row in enumerate(rows):
        piece = Piece(slot, 0, row[: done[slot]])
        hidden = step(decoder, [piece], cache, group_size=group_size)
        found.append((slot, done[slot] - 1, decoder.logits(hidden[-1:])[0]))
    while pieces := [Piece(s, done[s], [row[done[s]]]) for s, row in enumerate(rows) if done[s] < len(row)]:
        logits = decoder.logits(step(decoder, pieces, cache, group_size=group_size))
        found += [(piece.slot, piece.start, row) for piece, row in zip(pieces, logits, strict=True)]
        for piece in pieces:
            done[piece.slot] += 1
    return found
