"""SiLU whose bits do not depend on the width or the number of rows."""

from typing import Any

import torch
from torch import Tensor, nn


class _SiLU(torch.autograd.Function):
    """`x / (1 + exp(-x))`: the library's own silu rounds differently in a vector's tail than in its body."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return silu(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gate = torch.sigmoid(x)
        return grads[0] * (gate * (1 + x * (1 - gate)))


class InvariantSiLU(nn.Module):
    """`x / (1 + exp(-x))` as a module."""

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise, any shape."""
        return _SiLU.apply(x)


def silu(x: Tensor) -> Tensor:
    """`x / (1 + exp(-x))` without autograd bookkeeping, elementwise."""
    return x / torch.exp(-x).add_(1)
