"""Truncated importance sampling."""

from torch import Tensor

LOG_RATIO_BOUND = 20.0


def truncated_importance(old: Tensor, rollout: Tensor, bound: float) -> Tensor:
    """`min(exp(old - rollout), bound)` per token, `[tokens]`, without a gradient.

    old: the trainer's log-probabilities before the update; rollout: the engine's.
    """
    log_ratio = (old - rollout).detach().clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return log_ratio.exp().clamp(max=bound)
