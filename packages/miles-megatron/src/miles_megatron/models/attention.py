"""Causal attention over packed sequences whose forward bits do not depend on batch, packing or cache.

One product with all keys, a softmax over whole rows whose keys are padded to a multiple of 64, and a product with the
values in 128-key chunks in ascending order: zero padding then changes no bit. Only the forward has this property; the
backward is dense.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from miles_megatron.models.layout import PackedLayout, SegmentGroup

ROW_MULTIPLE = 4
"""Batched matrix kernels agree for every row count that is a multiple of this."""
VALUE_CHUNK = 128
"""Keys per chunk of the product with the values: the library splits sums over more than 192 by their length."""
KEEP_ELEMENTS = 1 << 22
"""Attention probabilities of a group up to this size are kept for the backward; larger ones are computed again."""


class Attend(Protocol):
    """How the tokens of one forward pass attend."""

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """`[tokens, heads, d], [tokens, kv_heads, d] twice -> [tokens, heads, d]`; `scale` multiplies the scores."""
        ...


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    attend: Attend | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention function in the shape transformers asks for; `attend` knows which rows belong together."""
    if attend is None or attention_mask is not None:
        raise ValueError("expected a packed batch; call the model through packed_forward.")
    layer: int = module.layer_idx
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    return attend(layer, q, k, v, scaling)[None], None


def group_rows(query: Tensor, kv_heads: int) -> Tensor:
    """`[batch, width, heads, d] -> [batch, kv_heads, rows, d]`, rows = width * group size up to a multiple of 4."""
    batch, width, heads, d = query.shape
    group = heads // kv_heads
    rows = (
        query.view(batch, width, kv_heads, group, d).permute(0, 2, 1, 3, 4).reshape(batch, kv_heads, width * group, d)
    )
    missing = -rows.shape[2] % ROW_MULTIPLE
    return functional.pad(rows, (0, 0, 0, missing)) if missing else rows


def ungroup_rows(rows: Tensor, width: int, heads: int) -> Tensor:
    """The inverse of `group_rows`: `[batch, kv_heads, rows, d] -> [batch, width, heads, d]`."""
    batch, kv_heads, _, d = rows.shape
    group = heads // kv_heads
    kept = rows[:, :, : width * group].view(batch, kv_heads, width, group, d)
    return kept.permute(0, 2, 1, 3, 4).reshape(batch, width, heads, d)


def probabilities(q: Tensor, k: Tensor, dead: Tensor) -> Tensor:
    """`softmax(q k^T)` over visible keys, `[batch, kv_heads, rows, keys]`, in float32 or wider, then q's dtype.

    q `[batch, kv_heads, rows, d]` already scaled; k `[batch, kv_heads, keys, d]`, keys a multiple of 64, finite
    everywhere. dead, broadcastable to the result: True where a key is invisible, or a float of 0 and -inf that says the
    same and is faster to apply; at least one key is visible per row.
    """
    batch, kv_heads, rows, d = q.shape
    scores = torch.bmm(q.reshape(-1, rows, d), k.reshape(batch * kv_heads, -1, d).transpose(1, 2))
    scores = scores.view(batch, kv_heads, rows, -1)
    scores = scores.masked_fill_(dead, float("-inf")) if dead.dtype is torch.bool else scores.add_(dead)
    return scores.softmax(-1) if q.dtype.itemsize >= 4 else scores.float().softmax(-1).to(q.dtype)


def weigh(p: Tensor, v: Tensor) -> Tensor:
    """`p v` in 128-key chunks in ascending order, `[batch, kv_heads, rows, d]`; finite v everywhere."""
    batch, kv_heads, rows, keys = p.shape
    p, v = p.reshape(-1, rows, keys), v.reshape(batch * kv_heads, keys, -1)
    out = torch.bmm(p[..., :VALUE_CHUNK], v[:, :VALUE_CHUNK])
    for start in range(VALUE_CHUNK, keys, VALUE_CHUNK):
        out += torch.bmm(p[..., start : start + VALUE_CHUNK], v[:, start : start + VALUE_CHUNK])
    return out.view(batch, kv_heads, rows, -1)


class _PackedAttention(torch.autograd.Function):
    """Block-diagonal causal attention of packed sequences; see `PackedAttend`."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: PackedLayout, scale: float) -> Tensor:
        out = torch.zeros_like(query)
        kept = []
        for group in layout.groups:
            q, k, v = _gather(query * scale, key, value, group)
            p = probabilities(q, k, group.dead)
            o = ungroup_rows(weigh(p, v), group.width, query.shape[1])
            out.index_copy_(0, group.query_tokens, o.flatten(0, 1)[group.query_places])
            kept.append(p if p.numel() <= KEEP_ELEMENTS else query.new_empty(0))
        ctx.layout, ctx.scale = layout, scale
        ctx.save_for_backward(query, key, value, out, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, *kept = ctx.saved_tensors
        d_query, d_key, d_value = torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
        kv_heads, heads = key.shape[1], query.shape[1]
        for group, p in zip(ctx.layout.groups, kept, strict=True):
            q, k, v = _gather(query * ctx.scale, key, value, group)
            p = p if p.numel() else probabilities(q, k, group.dead)
            d_out = group_rows(_padded(grads[0], group), kv_heads)
            o = group_rows(_padded(out, group), kv_heads)
            dv = torch.matmul(p.transpose(-1, -2), d_out)
            ds = torch.matmul(d_out, v.transpose(-1, -2)).sub_((d_out * o).sum(-1, keepdim=True)).mul_(p)
            dq = ungroup_rows(torch.matmul(ds, k).mul_(ctx.scale), group.width, heads)
            d_query.index_copy_(0, group.query_tokens, dq.flatten(0, 1)[group.query_places])
            dk = torch.matmul(ds.transpose(-1, -2), q)
            for total, part in ((d_key, dk), (d_value, dv)):
                total.index_add_(0, group.key_tokens, part.transpose(1, 2).flatten(0, 1)[group.key_places])
        return d_query, d_key, d_value, None, None


@dataclass(frozen=True, slots=True)
class PackedAttend:
    """Each token attends to the tokens of its own sequence up to itself; with autograd."""

    layout: PackedLayout

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """See `Attend`; the layer does not matter."""
        return _PackedAttention.apply(query, key, value, self.layout, scale)


def _padded(x: Tensor, group: SegmentGroup) -> Tensor:
    """`[tokens, heads, d] -> [batch, width, heads, d]`, zeros where a segment is shorter."""
    flat = x.new_zeros(group.batch * group.width, *x.shape[1:])
    flat.index_copy_(0, group.query_places, x[group.query_tokens])
    return flat.view(group.batch, group.width, *x.shape[1:])


def _gather(query: Tensor, key: Tensor, value: Tensor, group: SegmentGroup) -> tuple[Tensor, Tensor, Tensor]:
    def keyed(x: Tensor) -> Tensor:
        flat = x.new_zeros(group.batch * group.keys, *x.shape[1:])
        flat.index_copy_(0, group.key_places, x[group.key_tokens])
        return flat.view(group.batch, group.keys, *x.shape[1:]).transpose(1, 2)

    return group_rows(_padded(query, group), key.shape[1]), keyed(key), keyed(value)
