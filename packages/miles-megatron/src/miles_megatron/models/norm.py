"""Root-mean-square norm in one call."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class FusedRMSNorm(nn.Module):
    """The norm of Llama, Qwen and kin (weight, `variance_epsilon`), computed in float32, over the last dimension."""

    weight: nn.Parameter
    variance_epsilon: float

    def forward(self, hidden_states: Tensor) -> Tensor:
        """`[..., width] -> [..., width]`, dtype kept."""
        return rms_norm(hidden_states, self.weight, self.variance_epsilon)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`x / sqrt(mean(x^2) + eps) * weight`; below 32 bits the mean is taken in float32."""
    if x.dtype.itemsize >= 4:
        return functional.rms_norm(x, weight.shape, weight, eps)
    return functional.rms_norm(x.to(torch.float32), weight.shape, None, eps).to(x.dtype) * weight
