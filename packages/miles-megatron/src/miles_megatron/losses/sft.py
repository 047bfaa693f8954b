"""Supervised cross-entropy on the trained tokens."""

import torch

from miles_megatron.algorithm import AlgorithmConfig
from miles_megatron.losses.token_loss import LossTokens, TokenLoss


def sft_loss(tokens: LossTokens, algorithm: AlgorithmConfig) -> TokenLoss:
    """`-logp` per token; advantages and old log-probabilities are not looked at, the ratio is 1."""
    ones = torch.ones_like(tokens.logprobs)
    return TokenLoss(loss=-tokens.logprobs, ratio=ones, clipped=torch.zeros_like(ones, dtype=torch.bool))
