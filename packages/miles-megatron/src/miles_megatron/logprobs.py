"""Log-probabilities and entropy at the sampling temperature, the same function for the trainer and the engine."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from miles_megatron.models.distribution import log_distribution


class TokenScores(NamedTuple):
    """`[tokens]` each: natural log-probability of the target, entropy of the whole distribution."""

    logprobs: Tensor
    entropy: Tensor


def token_scores(logits: Tensor, targets: Tensor, temperature: float | Tensor, *, entropy_grad: bool) -> TokenScores:
    """Scores of `targets` `[rows]` under `logits` `[rows, vocab]`; without `entropy_grad` the entropy is a constant."""
    log_probs = log_distribution(logits, temperature)
    chosen = log_probs.gather(-1, targets[:, None])[:, 0].clone()  # not a view: FSDP hooks its outputs
    return TokenScores(chosen, _entropy(log_probs if entropy_grad else log_probs.detach()))


def _entropy(log_probs: Tensor) -> Tensor:
    """`-sum p log p`; an impossible token (log p = -inf) adds 0 and no gradient."""
    finite = log_probs.clamp(min=torch.finfo(log_probs.dtype).min)
    return -(log_probs.exp() * finite).sum(-1)


def chunked_scores(
    hidden: Tensor,
    targets: Tensor,
    *,
    head: Callable[[Tensor], Tensor],
    temperature: float,
    chunk_rows: int,
    entropy_grad: bool = False,
) -> TokenScores:
    """Scores of `targets` `[rows]` from `hidden` `[rows, width]`, holding the logits of `chunk_rows` rows at a time.

    head: hidden rows to logits `[rows, vocab]`; it must treat rows independently. With more than one chunk the logits
    are computed again in the backward pass, so that peak memory is that of one chunk whatever the number of rows.
    """

    def scores(rows: Tensor, wanted: Tensor) -> TokenScores:
        return token_scores(head(rows), wanted, temperature, entropy_grad=entropy_grad)

    if hidden.shape[0] <= chunk_rows:
        return scores(hidden, targets)
    recompute = torch.is_grad_enabled()
    parts = []
    for rows, wanted in zip(hidden.split(chunk_rows), targets.split(chunk_rows), strict=True):
        if recompute:
            parts.append(checkpoint(scores, rows, wanted, use_reentrant=False, preserve_rng_state=False))
        else:
            parts.append(scores(rows, wanted))
    return TokenScores(torch.cat([p.logprobs for p in parts]), torch.cat([p.entropy for p in parts]))
