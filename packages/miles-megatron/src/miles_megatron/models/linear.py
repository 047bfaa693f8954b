"""A linear layer whose rows do not depend on how many rows there are."""

from torch import Tensor, nn
from torch.nn import functional

ROW_MULTIPLE = 16
"""CPU matrix kernels switch with the number of rows; from this multiple on they agree for every row."""


class PaddedLinear(nn.Linear):
    """`nn.Linear` over rows padded to a multiple of 16: a row's bits are the same in any batch."""

    def forward(self, input: Tensor) -> Tensor:
        """`[..., in] -> [..., out]`."""
        return padded_linear(input, self.weight, self.bias)


def padded_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`functional.linear` with the rows of `x` (all dimensions but the last) padded to a multiple of 16."""
    rows = x.shape[:-1].numel()
    missing = -rows % ROW_MULTIPLE
    if not missing:
        return functional.linear(x, weight, bias)
    flat = functional.pad(x.reshape(rows, x.shape[-1]), (0, 0, 0, missing))
    return functional.linear(flat, weight, bias)[:rows].view(*x.shape[:-1], weight.shape[0])
