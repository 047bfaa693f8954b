"""Per-token estimators of KL(policy || reference) on tokens sampled from the policy (http://joschu.net/blog/kl-approx.html)."""

from typing import assert_never

import torch
from torch import Tensor

from miles_megatron.algorithm import KlKind

LOG_RATIO_BOUND = 20.0
LOW_VARIANCE_BOUND = 10.0


def kl_estimate(kind: KlKind, logprobs: Tensor, reference: Tensor) -> Tensor:
    """The estimate for each token, with `x = logprobs - reference`, shapes `[tokens]`.

    k1 is `x`, k2 `x^2 / 2`, k3 `exp(-x) - 1 + x`; low_variance is k3 with x clamped to +-20 and the result to +-10.
    """
    x = logprobs - reference
    match kind:
        case "k1":
            return x
        case "k2":
            return x * x / 2
        case "k3":
            return torch.expm1(-x) + x
        case "low_variance":
            bounded = x.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
            return (torch.expm1(-bounded) + bounded).clamp(-LOW_VARIANCE_BOUND, LOW_VARIANCE_BOUND)
        case _:
            assert_never(kind)
