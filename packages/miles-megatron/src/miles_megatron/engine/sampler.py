"""From logits to tokens. A token depends on its own logits, seed and position, never on the batch."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from miles_core.seeds import derive
from miles_megatron.engine.sampling_params import SamplingParams
from miles_megatron.models.distribution import log_distribution


class Draw(NamedTuple):
    """What one row is sampled with. seed: of the request; position: number of tokens it sampled before."""

    params: SamplingParams
    seed: int
    position: int


def sample(logits: Tensor, draws: Sequence[Draw]) -> tuple[list[int], list[float]]:
    """A token and its natural log-probability for each row of `logits` `[rows, vocab]`.

    The log-probability is that of `logits / temperature` before top-k and top-p. A row of NaN gives a NaN.
    """
    temperatures = torch.tensor([[d.params.temperature or 1.0] for d in draws], dtype=torch.float32)
    logprobs = log_distribution(logits, temperatures.to(logits.device))
    tokens = _drawn(logprobs, draws)
    greedy = [row for row, d in enumerate(draws) if d.params.greedy]
    if greedy:
        tokens[greedy] = _best(logprobs[greedy])
    chosen = logprobs.gather(1, tokens[:, None])[:, 0]
    return tokens.tolist(), chosen.tolist()


def uniform(seed: int, position: int) -> float:
    """The request's random number for this position, in [0, 1), 53 bits of xxh3."""
    return (derive(seed, "token", position) >> 10) * 2.0**-53


def allowed(logprobs: Tensor, *, top_k: int, top_p: float) -> Tensor:
    """Which tokens of one distribution `[vocab]` may be drawn: top-k first, then top-p over what is left.

    Exactly `top_k` tokens survive a tie: those with the lower ids. Top-p keeps the fewest most likely tokens whose
    share of the remaining mass reaches `top_p`.
    """
    order = torch.sort(logprobs, descending=True, stable=True).indices
    keep = torch.ones_like(logprobs, dtype=torch.bool)
    if top_k > 0:
        keep[order[top_k:]] = False
        order = order[:top_k]
    if top_p < 1:
        mass = logprobs[order].double().exp()
        before = mass.cumsum(0) - mass
        keep[order[before >= top_p * mass.sum()]] = False
        keep[order[0]] = True
    return keep


def _drawn(logprobs: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Inverse-transform sampling over the tokens in the order of their ids."""
    mass = logprobs.double().exp_()
    for row, draw in enumerate(draws):
        if draw.params.filtered:
            keep = allowed(logprobs[row], top_k=draw.params.top_k, top_p=draw.params.top_p)
            mass[row].masked_fill_(~keep, 0.0)
    cumulative = mass.cumsum_(-1)
    total = cumulative[:, -1:]
    numbers = torch.tensor([[uniform(d.seed, d.position)] for d in draws], dtype=torch.float64, device=mass.device)
    target = torch.minimum(numbers * total, torch.nextafter(total, torch.zeros_like(total)))
    found = torch.searchsorted(cumulative, target, right=True)[:, 0]
    return found.clamp_(max=logprobs.shape[1] - 1)


def _best(logprobs: Tensor) -> Tensor:
    """The lowest id among the most likely tokens of each row."""
    ids = torch.arange(logprobs.shape[1], device=logprobs.device)
    best = torch.where(logprobs == logprobs.amax(-1, keepdim=True), ids, logprobs.shape[1])
    return best.amin(-1).clamp_(max=logprobs.shape[1] - 1)
