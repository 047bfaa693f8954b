"""Clipped policy gradient (PPO, arXiv 1707.06347; clip-higher, arXiv 2503.14476; dual clip, arXiv 1912.09729)."""

import torch

from miles_megatron.algorithm import AlgorithmConfig
from miles_megatron.losses.token_loss import LossTokens, TokenLoss

LOG_RATIO_BOUND = 20.0


def ppo_loss(tokens: LossTokens, algorithm: AlgorithmConfig) -> TokenLoss:
    """`max(-rho A, -clip(rho, 1 - clip_eps, 1 + clip_eps_high) A)` per token, `rho = exp(clamp(logp - old, -20, 20))`.

    With `dual_clip` = c, tokens of negative advantage lose at most `-c A`. Outside the clamp the gradient is 0.
    """
    log_ratio = (tokens.logprobs - tokens.old_logprobs).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    ratio = log_ratio.exp()
    plain = -ratio * tokens.advantages
    bounded = -ratio.clamp(1 - algorithm.clip_eps, 1 + algorithm.upper_clip) * tokens.advantages
    loss = torch.maximum(plain, bounded)
    if algorithm.dual_clip is not None:
        ceiling = torch.minimum(-algorithm.dual_clip * tokens.advantages, loss)
        loss = torch.where(tokens.advantages < 0, ceiling, loss)
    return TokenLoss(loss=loss, ratio=ratio.detach(), clipped=(bounded > plain).detach())
