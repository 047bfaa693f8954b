"""The packed attention against a float64 double loop, forward and backward."""

import math

import pytest
import torch
from torch.nn import functional

from miles_megatron.models.activation import InvariantSiLU
from miles_megatron.models.attention import PackedAttend
from miles_megatron.models.layout import plan_layout
from miles_megatron.models.linear import padded_linear


def loop_attention(q, k, v, lengths, scale):
    """Causal attention one query at a time, in plain Python arithmetic over float64."""
    group, rows, offset = q.shape[1] // k.shape[1], [], 0
    for length in lengths:
        for t in range(offset, offset + length):
            heads = []
            for h in range(q.shape[1]):
                scores = [float(q[t, h] @ k[s, h // group]) * scale for s in range(offset, t + 1)]
                top = max(scores)
                weights = [math.exp(x - top) for x in scores]
                heads.append(sum(w * v[s, h // group] for w, s in zip(weights, range(offset, t + 1), strict=True)))
                heads[-1] = heads[-1] / sum(weights)
            rows.append(torch.stack(heads))
        offset += length
    return torch.stack(rows)


@pytest.fixture
def qkv():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(81, h, 8, generator=generator, dtype=torch.float64) for h in (6, 2, 2)]


def test_attention_equals_a_double_loop(qkv):
    lengths = [3, 1, 70, 7]
    layout = plan_layout(lengths, group_size=3, row_multiple=1, device="cpu")
    ours = PackedAttend(layout)(0, *qkv, 0.35)
    assert (ours - loop_attention(*qkv, lengths, 0.35)).abs().max() < 1e-12


def test_attention_gradients_equal_finite_differences(qkv):
    lengths = [3, 1, 70, 7]
    layout = plan_layout(lengths, group_size=3, row_multiple=1, device="cpu")
    inputs = [x.requires_grad_() for x in qkv]
    assert torch.autograd.gradcheck(lambda *x: PackedAttend(layout)(0, *x, 0.35), inputs, fast_mode=True)


def test_long_sequences_in_query_blocks_have_gradients_of_dense_attention():
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(700, h, 8, generator=generator, dtype=torch.float64, requires_grad=True) for h in (2, 1, 1))
    layout = plan_layout([700], group_size=2, row_multiple=1, device="cpu")
    assert len(layout.groups) == 2
    ours = PackedAttend(layout)(0, q, k, v, 8**-0.5)
    heads = (x.transpose(0, 1)[None] for x in (q, k.expand(-1, 2, -1), v.expand(-1, 2, -1)))
    dense = functional.scaled_dot_product_attention(*heads, is_causal=True)[0].transpose(0, 1)
    assert (ours - dense).abs().max() < 1e-12
    weight = torch.randn(700, 2, 8, generator=generator, dtype=torch.float64)
    for a, b in zip(*(torch.autograd.grad((y * weight).sum(), (q, k, v)) for y in (ours, dense)), strict=True):
        assert (a - b).abs().max() < 1e-11


def test_padding_tokens_of_the_layout_attend_nothing(qkv):
    layout = plan_layout([70], group_size=3, row_multiple=27, device="cpu")
    assert layout.num_tokens == 81
    assert torch.equal(PackedAttend(layout)(0, *qkv, 0.35)[70:], torch.zeros(11, 6, 8, dtype=torch.float64))


def test_a_padded_linear_row_is_the_same_in_every_batch():
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(70, 96, generator=generator), torch.randn(50, 96, generator=generator)
    whole = padded_linear(x, w)
    assert all(torch.equal(padded_linear(x[:n], w), whole[:n]) for n in range(1, 70))


def test_silu_equals_the_librarys_and_its_gradient_finite_differences():
    x = torch.linspace(-30, 30, 501, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(InvariantSiLU()(x), functional.silu(x), atol=1e-14, rtol=1e-14)
    assert torch.autograd.gradcheck(InvariantSiLU(), x, fast_mode=True)
