"""What a token loss takes and gives. Only trained tokens are in it, so no mask is needed."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTokens:
    """The trained tokens of one micro-batch, all `[tokens]` of one float dtype.

    logprobs carries the gradient; old_logprobs and advantages are constants. sequence: index of each token's sequence
    (int64), for losses with quantities per sequence.
    """

    logprobs: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    sequence: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoss:
    """`[tokens]` each: the loss before reduction, the ratio to the old policy, and where clipping decided it."""

    loss: Tensor
    ratio: Tensor
    clipped: Tensor
