"""One training step, as the papers write it, for any backend."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from miles_core.batch import TrainBatch
from miles_megatron.advantages import Advantages, RewardedSequence, choose_advantage
from miles_megatron.algorithm import AlgorithmConfig
from miles_megatron.corrections import choose_correction
from miles_megatron.kl import kl_estimate
from miles_megatron.logprobs import TokenScores
from miles_megatron.losses import LossTokens, choose_loss
from miles_megatron.meter import Meter
from miles_megatron.packing import Oversize, Pack
from miles_megatron.plan import UpdatePlan, deal_rollouts, minibatch_seed, plan_update
from miles_megatron.policy import Policy
from miles_megatron.reductions import SequenceCount, choose_reduction
from miles_megatron.rows import PackedRows, pack_rows
from miles_megatron.schedules import ScheduleConfig, learning_rate

MEANS = (
    "kl",
    "entropy",
    "clip_fraction",
    "ratio_mean",
    "advantage_abs_mean",
    "mismatch_kl",
    "logprob_abs_diff_mean",
)
MAXIMA = ("logprob_abs_diff_max",)

TokenValues = dict[int, Tensor]
"""Values `[trained]` of each of this rank's sequences, by index in the batch."""


@dataclass(slots=True)
class Progress:
    """Counters that a checkpoint keeps: updates tried (they drive the schedule) and updates skipped for a NaN."""

    updates: int = 0
    nan_steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """What stays the same during one step. Tensors are `[trained]` per sequence of this rank."""

    batch: TrainBatch
    plans: tuple[UpdatePlan, ...]
    rollout: TokenValues
    meter: Meter
    old: TokenValues | None = None
    reference: TokenValues | None = None
    advantages: TokenValues | None = None


class PolicyTrainer:
    """Turns batches into optimizer steps of a policy. Equal inputs give equal bits.

    peak_rate: highest learning rate of the schedule. token_budget: tokens of one micro-batch. seed: of the run.
    """

    def __init__(
        self,
        policy: Policy,
        algorithm: AlgorithmConfig,
        *,
        schedule: ScheduleConfig,
        peak_rate: float,
        token_budget: int,
        oversize: Oversize,
        seed: int,
    ) -> None:
        self.policy = policy
        self.algorithm = algorithm
        self.progress = Progress()
        self._schedule, self._peak_rate = schedule, peak_rate
        self._token_budget, self._oversize, self._seed = token_budget, oversize, seed
        self._advantage = choose_advantage(algorithm.advantage)
        self._token_loss = choose_loss(algorithm.loss)
        self._correction = choose_correction(algorithm.correction)
        self._reduction = choose_reduction(algorithm.reduction)

    def step(self, batch: TrainBatch) -> Mapping[str, float]:
        """Train on the batch; the metrics are those of the whole batch, equal on every rank.

        loss and grad_norm are means over the step's updates (one unless epochs or minibatches say otherwise), lr is
        that of the last update, other means are over trained tokens. nan_steps counts since the start of the run.
        """
        began = perf_counter()
        step = self._prepare(batch)
        step = self._score_before(step)
        step = self._estimate_advantages(step)
        prepared = perf_counter()
        losses, norms, rate = [], [], 0.0
        for number, plan in enumerate(step.plans * self.algorithm.epochs):
            weights = self._token_weights(batch, plan)
            parts = [self._accumulate(step, rows, weights, fresh=number == 0) for rows in self._packs(step, plan)]
            loss = self.policy.sum(torch.tensor([math.fsum(parts)], dtype=torch.float64, device=self.policy.device))
            norm, rate = self._update(loss.item(), any(weights))
            losses.append(loss.item())
            norms.append(norm)
        means = self._metrics(step)
        return means | {
            "loss": sum(losses) / len(losses),
            "grad_norm": sum(norms) / len(norms),
            "lr": rate,
            "train_tokens": float(batch.num_tokens),
            "trained_tokens": float(batch.num_trainable),
            "micro_batches": float(sum(plan.rounds for plan in step.plans) * self.algorithm.epochs),
            "nan_steps": float(self.progress.nan_steps),
            "time/prepare_s": prepared - began,
            "time/update_s": perf_counter() - prepared,
        }

    # Before the first update.

    def _prepare(self, batch: TrainBatch) -> _Step:
        sequences = batch.sequences
        minibatches = deal_rollouts(
            [(s.group_id, s.rollout_id) for s in sequences],
            minibatches=self.algorithm.minibatches,
            seed=minibatch_seed(self._seed, batch.step),
        )
        trained = [int(s.loss_mask.sum()) for s in sequences]
        plans = tuple(
            plan_update(
                members,
                lengths=[s.num_tokens for s in sequences],
                trained=trained,
                ranks=self.policy.world_size,
                token_budget=self._token_budget,
                oversize=self._oversize,
            )
            for members in minibatches
        )
        mine = [index for plan in plans for pack in plan.packs[self.policy.rank] for index in pack.members]
        rollout = {i: self._tensor(sequences[i].rollout_logprobs[sequences[i].loss_mask]) for i in mine}
        return _Step(batch=batch, plans=plans, rollout=rollout, meter=Meter())

    def _score_before(self, step: _Step) -> _Step:
        """Log-probabilities under the weights before the update, where its own first forward pass does not give them.

        With one update its own values serve as the old ones: the weights are the same, so are the bits.
        """
        algorithm = self.algorithm
        if not algorithm.uses_rollouts and not algorithm.uses_reference:
            return step
        old = reference = None
        if algorithm.uses_rollouts and algorithm.old_logprobs == "rollout":
            old = step.rollout
        elif algorithm.uses_rollouts and (algorithm.updates > 1 or self._penalizes_rewards):
            old = self._score_all(step)
            for index, values in old.items():
                self._measure_mismatch(step.meter, values, step.rollout[index])
        if algorithm.uses_reference:
            with self.policy.reference():
                reference = self._score_all(step)
        return replace(step, old=old, reference=reference)

    def _score_all(self, step: _Step) -> TokenValues:
        values: TokenValues = {}
        with torch.no_grad():
            for plan in step.plans:
                for pack, rows in zip(plan.packs[self.policy.rank], self._packs(step, plan), strict=True):
                    scores = self._scores(step, rows, entropy_grad=False)
                    values.update(_by_sequence(scores.logprobs, pack, rows))
        return values

    @property
    def _penalizes_rewards(self) -> bool:
        return self.algorithm.uses_reference and self.algorithm.kl_in == "reward"

    def _estimate_advantages(self, step: _Step) -> _Step:
        if not self.algorithm.uses_rollouts:
            return step
        sequences = step.batch.sequences
        penalty = self._kl_per_rollout(step) if self._penalizes_rewards else {}
        rewarded = [
            RewardedSequence(
                group_id=s.group_id,
                rollout_id=s.rollout_id,
                reward=s.reward - self.algorithm.kl_coef * penalty.get((s.group_id, s.rollout_id), 0.0),
                trained=int(s.loss_mask.sum()),
            )
            for s in sequences
        ]
        values: Advantages = self._advantage(rewarded, std=self.algorithm.advantage_std)
        return replace(step, advantages={index: self._tensor(values[index]) for index in step.rollout})

    def _kl_per_rollout(self, step: _Step) -> dict[tuple[str, str], float]:
        """Sum over each rollout's trained tokens (its siblings together) of KL(old || reference), on every rank."""
        if step.old is None or step.reference is None:
            raise AssertionError("the KL penalty needs the old and the reference log-probabilities.")
        sums = torch.zeros(len(step.batch.sequences), dtype=torch.float64, device=self.policy.device)
        for index, old in step.old.items():
            sums[index] = kl_estimate(self.algorithm.kl_estimator, old.double(), step.reference[index].double()).sum()
        totals: dict[tuple[str, str], float] = {}
        for sequence, value in zip(step.batch.sequences, self.policy.sum(sums).tolist(), strict=True):
            key = (sequence.group_id, sequence.rollout_id)
            totals[key] = totals.get(key, 0.0) + value
        return totals

    # The update.

    def _token_weights(self, batch: TrainBatch, plan: UpdatePlan) -> list[float]:
        """Weight of every trained token by sequence of the batch; 0 for sequences of other minibatches."""
        chosen = [batch.sequences[index] for index in plan.members]
        counts = [SequenceCount(rollout=(s.group_id, s.rollout_id), trained=int(s.loss_mask.sum())) for s in chosen]
        weights = [0.0] * len(batch.sequences)
        for index, weight in zip(plan.members, self._reduction(counts, self.algorithm.fixed_length), strict=True):
            weights[index] = weight
        return weights

    def _packs(self, step: _Step, plan: UpdatePlan) -> Iterator[PackedRows]:
        for pack in plan.packs[self.policy.rank]:
            yield pack_rows(step.batch.sequences, pack.members, device=self.policy.device)

    def _accumulate(self, step: _Step, rows: PackedRows, weights: Sequence[float], *, fresh: bool) -> float:
        """Forward and backward of one micro-batch; its part of the loss. fresh: no update of this step came before."""
        algorithm, meter = self.algorithm, step.meter
        scores = self._scores(step, rows, entropy_grad=algorithm.entropy_coef > 0)
        logprobs = scores.logprobs
        loss = self._policy_loss(step, rows, logprobs, fresh=fresh)
        if step.reference is not None:
            reference = _gather(step.reference, rows, logprobs)
            meter.mean("kl", kl_estimate("k3", logprobs.detach(), reference))
            if algorithm.kl_in == "loss":
                loss = loss + algorithm.kl_coef * kl_estimate(algorithm.kl_estimator, logprobs, reference)
        if algorithm.entropy_coef > 0:
            loss = loss - algorithm.entropy_coef * scores.entropy
        meter.mean("entropy", scores.entropy)
        per_token = self._tensor(np.asarray(weights))[rows.sequence]
        total = (loss * per_token).sum()
        self.policy.backward(total)
        return float(total.detach())

    def _policy_loss(self, step: _Step, rows: PackedRows, logprobs: Tensor, *, fresh: bool) -> Tensor:
        meter = step.meter
        constant = logprobs.detach()
        old, advantages, correction = constant, torch.zeros_like(constant), None
        if step.advantages is not None:
            rollout = _gather(step.rollout, rows, logprobs)
            if step.old is not None:
                old = _gather(step.old, rows, logprobs)
            if fresh and (step.old is None or step.old is step.rollout):
                self._measure_mismatch(meter, constant, rollout)
            advantages = _gather(step.advantages, rows, logprobs)
            correction = self._correction(old, rollout, self.algorithm.correction_bound)
            meter.mean("advantage_abs_mean", advantages.abs())
        tokens = LossTokens(logprobs=logprobs, old_logprobs=old, advantages=advantages, sequence=rows.sequence)
        result = self._token_loss(tokens, self.algorithm)
        meter.mean("clip_fraction", result.clipped)
        meter.mean("ratio_mean", result.ratio)
        return result.loss if correction is None else result.loss * correction

    def _update(self, loss: float, has_tokens: bool) -> tuple[float, float]:
        """Clip and apply; the gradient norm before clipping, and the rate. A NaN or infinity changes no weight."""
        rate = learning_rate(self._peak_rate, self.progress.updates, schedule=self._schedule)
        norm = self.policy.clip_gradients() if has_tokens else 0.0
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self.progress.nan_steps += 1
        elif has_tokens:
            self.policy.update(learning_rate=rate)
        self.policy.drop_gradients()
        self.progress.updates += 1
        return norm, rate

    # Small parts.

    def _scores(self, step: _Step, rows: PackedRows, *, entropy_grad: bool) -> TokenScores:
        return self.policy.scores(rows, temperature=step.batch.temperature, entropy_grad=entropy_grad)

    def _measure_mismatch(self, meter: Meter, trainer: Tensor, rollout: Tensor) -> None:
        difference = (trainer.double() - rollout.double()).abs()
        meter.mean("mismatch_kl", kl_estimate("k3", rollout.double(), trainer.double()))
        meter.mean("logprob_abs_diff_mean", difference)
        meter.maximum("logprob_abs_diff_max", difference)

    def _metrics(self, step: _Step) -> dict[str, float]:
        return step.meter.reduce(
            means=MEANS,
            maxima=MAXIMA,
            device=self.policy.device,
            add=self.policy.sum,
            largest=self.policy.maximum,
        )

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(device=self.policy.device, dtype=self.policy.dtype)


def _by_sequence(values: Tensor, pack: Pack, rows: PackedRows) -> TokenValues:
    """Packed values cut back into sequences; members and their tokens lie in the same order in both."""
    if not pack.members:
        return {}
    counts = torch.unique_consecutive(rows.sequence, return_counts=True)[1]
    return dict(zip(pack.members, values.split(counts.tolist()), strict=True))


def _gather(values: TokenValues, rows: PackedRows, like: Tensor) -> Tensor:
    """Values of the pack's sequences laid end to end, `[trained]`."""
    members = torch.unique_consecutive(rows.sequence).tolist()
    return torch.cat([values[index] for index in members]) if members else torch.zeros_like(like)
