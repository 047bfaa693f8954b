"""How a batch is cut into updates, ranks and micro-batches: pure, and equal on every rank."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from miles_core.errors import TrainError
from miles_core.seeds import derive
from miles_megatron.balance import balance
from miles_megatron.packing import Oversize, Pack, pack


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatePlan:
    """One optimizer step: its sequences (indices into the batch, ascending) and each rank's packs of them.

    Every rank has equally many packs, because ranks meet in every one; a rank that is short has empty ones.
    Sequences without a trained token are members but in no pack.
    """

    members: tuple[int, ...]
    packs: tuple[tuple[Pack, ...], ...]

    @property
    def rounds(self) -> int:
        """Micro-batches of each rank."""
        return len(self.packs[0])


def deal_rollouts(rollouts: Sequence[tuple[str, str]], *, minibatches: int, seed: int) -> tuple[tuple[int, ...], ...]:
    """Sequences of each minibatch; all sequences of one rollout land in the same one.

    One minibatch keeps everything; more are dealt by a shuffle of the rollouts that depends on `seed` alone.
    """
    order = list(dict.fromkeys(rollouts))
    if minibatches > len(order):
        raise TrainError(f"expected at least {minibatches} rollouts for {minibatches} minibatches, found {len(order)}.")
    if minibatches > 1:
        random.Random(seed).shuffle(order)
    home = {rollout: place * minibatches // len(order) for place, rollout in enumerate(order)}
    return tuple(
        tuple(index for index, rollout in enumerate(rollouts) if home[rollout] == number)
        for number in range(minibatches)
    )


def plan_update(
    members: Sequence[int],
    *,
    lengths: Sequence[int],
    trained: Sequence[int],
    ranks: int,
    token_budget: int,
    oversize: Oversize = "alone",
) -> UpdatePlan:
    """Members with trained tokens dealt to ranks by tokens and packed under the budget.

    lengths, trained: tokens and trained tokens of every sequence of the batch.
    """
    live = [index for index in members if trained[index]]
    shares = balance([lengths[index] for index in live], ranks)
    packs = [_pack_share([live[i] for i in share], lengths, token_budget, oversize) for share in shares]
    rounds = max(len(mine) for mine in packs)
    empty = Pack(members=(), num_tokens=0)
    return UpdatePlan(members=tuple(members), packs=tuple((*mine, *[empty] * (rounds - len(mine))) for mine in packs))


def minibatch_seed(seed: int, step: int) -> int:
    """Seed of a step's shuffle in the run's seed tree."""
    return derive(seed, "minibatches", step)


def _pack_share(share: Sequence[int], lengths: Sequence[int], budget: int, oversize: Oversize) -> tuple[Pack, ...]:
    packs = pack([lengths[index] for index in share], token_budget=budget, oversize=oversize)
    return tuple(Pack(members=tuple(share[i] for i in p.members), num_tokens=p.num_tokens) for p in packs)
