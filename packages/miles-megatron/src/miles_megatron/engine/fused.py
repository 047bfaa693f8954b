"""The forward pass of Llama-like decoders with fewer, larger operations, on the model's own parameters.

Query, key and value projections are one product, and so are gate and up: splitting a product along its output changes
no bit. The fused matrices become the parameters' storage, so a weight update reaches both without a copy.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from miles_megatron.engine.forward import StepAttend
from miles_megatron.models.activation import InvariantSiLU, silu
from miles_megatron.models.linear import PaddedLinear
from miles_megatron.models.norm import FusedRMSNorm, rms_norm


@dataclass(frozen=True, slots=True)
class _Linear:
    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class _Layer:
    """Parameters of one decoder layer. head_norm: of queries and keys, where there are any."""

    index: int
    input_norm: Tensor
    attention_in: _Linear
    head_norm: tuple[FusedRMSNorm, FusedRMSNorm] | None
    attention_out: _Linear
    mlp_norm: Tensor
    mlp_in: _Linear
    mlp_out: _Linear
    eps: float
    scale: float


class FusedDecoder:
    """See `forward.Decoder`. Made by `fuse`, which knows whether a model fits."""

    def __init__(self, model: Any) -> None:
        config = model.config
        self._heads: int = config.num_attention_heads
        self._kv_heads: int = config.num_key_value_heads
        self._head = model.lm_head
        self._embedding: nn.Embedding = model.model.embed_tokens
        self._norm: FusedRMSNorm = model.model.norm
        self._rotary = model.model.rotary_emb
        self._layers = [_layer(layer) for layer in model.model.layers]

    def hidden(self, ids: Tensor, positions: Tensor, attend: StepAttend) -> Tensor:
        """See `Decoder`; the number of tokens is a multiple of 16."""
        x = functional.embedding(ids, self._embedding.weight)
        cos, sin = (t[0][:, None] for t in self._rotary(x[None], positions[None]))
        half = sin.shape[-1] // 2
        signed = torch.cat([-sin[..., :half], sin[..., half:]], -1)
        for layer in self._layers:
            y = layer.attention_in(rms_norm(x, layer.input_norm, layer.eps))
            attended = self._attention(layer, y, cos, signed, attend)
            x = x + layer.attention_out(attended)
            gate, up = layer.mlp_in(rms_norm(x, layer.mlp_norm, layer.eps)).chunk(2, -1)
            x = x + layer.mlp_out(silu(gate).mul_(up))
        return rms_norm(x, self._norm.weight, self._norm.variance_epsilon)

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Decoder`."""
        logits: Tensor = self._head(hidden)
        return logits

    def _attention(self, layer: _Layer, qkv: Tensor, cos: Tensor, signed: Tensor, attend: StepAttend) -> Tensor:
        heads, kv_heads = self._heads, self._kv_heads
        states = qkv.view(qkv.shape[0], heads + 2 * kv_heads, -1)
        turned, value = states[:, : heads + kv_heads], states[:, heads + kv_heads :]
        if layer.head_norm is not None:
            q_norm, k_norm = layer.head_norm
            both = torch.cat([q_norm.weight.expand(heads, -1), k_norm.weight.expand(kv_heads, -1)])
            turned = functional.rms_norm(turned, both.shape[-1:], None, q_norm.variance_epsilon) * both
        turned = _rotate(turned, cos, signed)
        out = attend(layer.index, turned[:, :heads], turned[:, heads:], value, layer.scale)
        return out.reshape(qkv.shape[0], -1)


def fuse(model: nn.Module) -> FusedDecoder | None:
    """The fused decoder of a model, whose projections then share the fused matrices' storage; None when it differs.

    It asks for the modules of Llama and Qwen3: a gated MLP with SiLU, RMS norms and nothing else in between. Whether
    the bits are the model's own is for the caller to check.
    """
    decoder: Any = getattr(model, "model", None)
    if not all(hasattr(decoder, name) for name in ("embed_tokens", "layers", "norm", "rotary_emb")):
        return None
    if not isinstance(decoder.norm, FusedRMSNorm) or not all(_fits(layer) for layer in decoder.layers):
        return None
    with torch.no_grad():
        for layer in decoder.layers:
            _share_storage(layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj)
            _share_storage(layer.mlp.gate_proj, layer.mlp.up_proj)
        return FusedDecoder(model)


def _rotate(x: Tensor, cos: Tensor, signed: Tensor) -> Tensor:
    """Rotary embedding: `x cos + rotate_half(x) sin`, the sign of rotate_half moved into `signed`."""
    swapped = x.unflatten(-1, (2, -1)).flip(-2).flatten(-2)
    return (x * cos).add_(swapped.mul_(signed))


def _fits(layer: Any) -> bool:
    attention, mlp = getattr(layer, "self_attn", None), getattr(layer, "mlp", None)
    linear = [getattr(attention, name, None) for name in ("q_proj", "k_proj", "v_proj", "o_proj")]
    linear += [getattr(mlp, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    norms = [getattr(layer, name, None) for name in ("input_layernorm", "post_attention_layernorm")]
    norms += [getattr(attention, name) for name in ("q_norm", "k_norm") if hasattr(attention, name)]
    return (
        all(isinstance(module, PaddedLinear) for module in linear)
        and all(isinstance(module, FusedRMSNorm) for module in norms)
        and isinstance(getattr(mlp, "act_fn", None), InvariantSiLU)
        and sum(1 for _ in layer.children()) == 4
    )


def _layer(layer: Any) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    return _Layer(
        index=attention.layer_idx,
        input_norm=layer.input_layernorm.weight,
        attention_in=_whole(attention.q_proj, attention.k_proj, attention.v_proj),
        head_norm=(attention.q_norm, attention.k_norm) if hasattr(attention, "q_norm") else None,
        attention_out=_Linear(attention.o_proj.weight, attention.o_proj.bias),
        mlp_norm=layer.post_attention_layernorm.weight,
        mlp_in=_whole(mlp.gate_proj, mlp.up_proj),
        mlp_out=_Linear(mlp.down_proj.weight, mlp.down_proj.bias),
        eps=layer.input_layernorm.variance_epsilon,
        scale=attention.scaling,
    )


def _share_storage(*parts: nn.Linear) -> None:
    """Lay the parameters of `parts` one behind the other in one matrix (and one bias), as views of it."""
    for name in ("weight", "bias"):
        values = [getattr(part, name) for part in parts]
        if values[0] is None:
            continue
        whole = torch.cat([value.data for value in values])
        for value, view in zip(values, whole.split([v.shape[0] for v in values]), strict=True):
            value.data = view


def _whole(*parts: nn.Linear) -> _Linear:
    """The fused matrix over the storage that `_share_storage` made."""
    rows = sum(part.weight.shape[0] for part in parts)
    first = parts[0].weight.data
    weight = first.as_strided((rows, first.shape[1]), first.stride())
    bias = None if parts[0].bias is None else parts[0].bias.data.as_strided((rows,), (1,))
    return _Linear(weight, bias)
