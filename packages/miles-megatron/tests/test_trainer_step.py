"""The whole step in float64 against a reference that loops over sequences and tokens with nothing packed or shared."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from miles_core.batch import TrainBatch
from miles_megatron.algorithm import AlgorithmConfig
from miles_megatron.models import load_causal_lm, packed_forward
from miles_megatron.torch_backend import AdamWConfig, TorchBackend, TorchBackendConfig

LR = 3e-3


def settings(**changes):
    return TorchBackendConfig(dtype="float64", optimizer=AdamWConfig(lr=LR, max_grad_norm=0.5), **changes)


def run(model, batches, config=None, **algorithm):
    """Metrics of every step, and the final weights, of a backend of one rank."""
    with TorchBackend(config or settings(), model_dir=model, algorithm=AlgorithmConfig(**algorithm), seed=7) as backend:
        metrics = [backend.step(batch) for batch in batches]
        return metrics, {name: tensor.clone() for name, tensor in backend.weights()}


def plain(metrics):
    return {k: v for k, v in metrics.items() if not k.startswith("time/") and k != "micro_batches"}


def distance(one, other):
    return max((one[name] - other[name]).abs().max().item() for name in one)


class Reference:
    """GRPO with PPO clipping written again: one sequence at a time, Python loops over tokens, a loop AdamW."""

    def __init__(self, folder, algorithm):
        self.model = load_causal_lm(folder, dtype="float64")
        self.initial = load_causal_lm(folder, dtype="float64")
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.0, foreach=False
        )
        self.algorithm = algorithm

    def token_logprobs(self, model, sequence, temperature):
        logits = packed_forward(model, torch.tensor(sequence.ids, dtype=torch.long), [sequence.num_tokens])
        table = []
        for t in range(1, sequence.num_tokens):
            if sequence.loss_mask[t]:
                row = logits[t - 1] / temperature
                table.append((t, row[int(sequence.ids[t])] - torch.logsumexp(row, 0)))
        return table

    def token_entropies(self, sequence, temperature):
        logits = packed_forward(self.model, torch.tensor(sequence.ids, dtype=torch.long), [sequence.num_tokens])
        entropies = {}
        for t in np.flatnonzero(sequence.loss_mask):
            p = torch.softmax(logits[t - 1] / temperature, 0)
            entropies[int(t)] = -(p * p.log()).sum()
        return entropies

    def advantage(self, sequences, sequence):
        group = {s.rollout_id: s.reward for s in sequences if s.group_id == sequence.group_id}
        values = list(group.values())
        if len(set(values)) == 1:
            return 0.0
        mean = sum(values) / len(values)
        std = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
        return (sequence.reward - mean) / (std + 1e-6)

    def weight(self, sequences, sequence):
        if self.algorithm.reduction == "token_mean":
            return 1 / sum(int(s.loss_mask.sum()) for s in sequences)
        if self.algorithm.reduction == "fixed_length":
            return 1 / self.algorithm.fixed_length
        rollouts = {(s.group_id, s.rollout_id) for s in sequences}
        mine = [s for s in sequences if (s.group_id, s.rollout_id) == (sequence.group_id, sequence.rollout_id)]
        return 1 / (sum(int(s.loss_mask.sum()) for s in mine) * len(rollouts))

    def step(self, batch):
        a, total, mismatch, kls, bits = self.algorithm, torch.zeros((), dtype=torch.float64), [], [], []
        for s in batch.sequences:
            initial = dict(self.token_logprobs(self.initial, s, batch.temperature)) if a.kl_coef else {}
            entropies = self.token_entropies(s, batch.temperature)
            for t, logp in self.token_logprobs(self.model, s, batch.temperature):
                rollout = float(s.rollout_logprobs[t])
                old = rollout if a.old_logprobs == "rollout" else logp.detach()
                ratio, advantage = torch.exp(logp - old), self.advantage(batch.sequences, s)
                clipped = ratio.clamp(1 - a.clip_eps, 1 + a.upper_clip)
                loss = torch.maximum(-ratio * advantage, -clipped * advantage)
                if a.correction == "tis":
                    loss = loss * min(math.exp(float(logp.detach()) - rollout), a.correction_bound)
                if a.kl_coef:
                    x = logp - initial[t].detach()
                    loss = loss + a.kl_coef * (torch.exp(-x) - 1 + x)
                    kls.append(math.exp(-x.item()) - 1 + x.item())
                loss = loss - a.entropy_coef * entropies[t]
                bits.append(entropies[t].item())
                total = total + loss * self.weight(batch.sequences, s)
                mismatch.append(float(logp.detach()) - rollout)
        self.optimizer.zero_grad()
        total.backward()
        norm = math.sqrt(sum(float((p.grad**2).sum()) for p in self.model.parameters()))
        if norm > 0.5:
            for p in self.model.parameters():
                p.grad *= 0.5 / norm
        self.optimizer.step()
        return {
            "loss": float(total.detach()),
            "grad_norm": norm,
            "kl": sum(kls) / len(kls) if kls else 0.0,
            "entropy": sum(bits) / len(bits),
            "logprob_abs_diff_max": max(abs(d) for d in mismatch),
            "logprob_abs_diff_mean": sum(abs(d) for d in mismatch) / len(mismatch),
            "mismatch_kl": sum(math.exp(d) - 1 - d for d in mismatch) / len(mismatch),
            "trained_tokens": float(len(mismatch)),
        }


@pytest.mark.parametrize(
    "algorithm",
    [
        {"kl_coef": 0.3, "correction": "tis"},
        {"old_logprobs": "rollout", "clip_eps_high": 0.4, "reduction": "sequence_mean", "entropy_coef": 0.1},
        {"reduction": "fixed_length", "fixed_length": 40},
    ],
    ids=["kl-tis", "rollout-sequence-mean", "fixed-length"],
)
def test_three_steps_equal_the_reference(tiny_model, make_batch, algorithm):
    batches = [make_batch(step=step, seed=step, temperature=0.9) for step in range(3)]
    found, weights = run(tiny_model, batches, **algorithm)
    reference = Reference(tiny_model, AlgorithmConfig(**algorithm))
    for batch, metrics in zip(batches, found, strict=True):
        expected = reference.step(batch)
        assert {name: metrics[name] for name in expected} == pytest.approx(expected, abs=1e-10)
    assert distance(weights, dict(reference.model.named_parameters())) <= 1e-10


@pytest.fixture(scope="module")
def rich(tiny_model, make_batch):
    """Two steps with every term on, in one micro-batch each."""
    batches = [make_batch(step=step, seed=step + 5, rollouts=12) for step in range(2)]
    algorithm = {"kl_coef": 0.1, "entropy_coef": 0.05, "correction": "tis", "reduction": "sequence_mean"}
    return batches, algorithm, run(tiny_model, batches, **algorithm)


@pytest.mark.parametrize("budget", [1, 25, 60])
def test_the_micro_batch_budget_changes_nothing(tiny_model, rich, budget):
    batches, algorithm, (whole, weights) = rich
    cut, cut_weights = run(tiny_model, batches, settings(tokens_per_micro_batch=budget), **algorithm)
    assert cut[0]["micro_batches"] > whole[0]["micro_batches"]
    for a, b in zip(whole, cut, strict=True):
        assert plain(a) == pytest.approx(plain(b), abs=1e-10)
    assert distance(weights, cut_weights) <= 1e-10


def test_the_order_of_sequences_and_the_logit_chunks_change_nothing(tiny_model, rich):
    batches, algorithm, (whole, weights) = rich
    turned = [replace(batch, sequences=batch.sequences[::-1]) for batch in batches]
    found, found_weights = run(tiny_model, turned, settings(logprob_chunk_rows=16), **algorithm)
    for a, b in zip(whole, found, strict=True):
        assert plain(a) == pytest.approx(plain(b), abs=1e-10)
    assert distance(weights, found_weights) <= 1e-10


def test_the_same_inputs_give_the_same_bits(tiny_model, rich):
    batches, algorithm, _ = rich
    single = TorchBackendConfig(optimizer=AdamWConfig(lr=LR))
    (one, first), (two, second) = (run(tiny_model, batches, single, **algorithm) for _ in range(2))
    assert [plain(m) for m in one] == [plain(m) for m in two]
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_constant_group_moves_nothing(tiny_model, make_batch):
    batch = make_batch()
    same = replace(batch, sequences=tuple(replace(s, reward=0.1) for s in batch.sequences))
    metrics, weights = run(tiny_model, [same])
    assert (metrics[0]["grad_norm"], metrics[0]["advantage_abs_mean"]) == (0.0, 0.0)
    assert distance(weights, dict(load_causal_lm(tiny_model, dtype="float64").named_parameters())) == 0.0


def test_a_batch_without_a_trained_token_changes_nothing(tiny_model, make_batch):
    batch = make_batch()
    masked = tuple(replace(s, loss_mask=np.zeros_like(s.loss_mask)) for s in batch.sequences)
    metrics, weights = run(tiny_model, [replace(batch, sequences=masked)], kl_coef=0.1)
    assert metrics[0]["trained_tokens"] == metrics[0]["loss"] == metrics[0]["grad_norm"] == 0.0
    assert distance(weights, dict(load_causal_lm(tiny_model, dtype="float64").named_parameters())) == 0.0


def test_a_nan_step_is_skipped_and_counted_and_the_next_one_trains(tiny_model, make_batch):
    good = make_batch(step=1)
    broken = replace(good.sequences[0], rollout_logprobs=np.full(good.sequences[0].num_tokens, np.nan, np.float32))
    bad = replace(good, sequences=(broken, *good.sequences[1:]))
    first, after_bad = run(tiny_model, [bad], old_logprobs="rollout")
    assert first[0]["nan_steps"] == 1.0
    assert math.isnan(first[0]["loss"])
    assert distance(after_bad, dict(load_causal_lm(tiny_model, dtype="float64").named_parameters())) == 0.0
    metrics, after = run(tiny_model, [bad, good], old_logprobs="rollout")
    _, clean = run(tiny_model, [good], old_logprobs="rollout")
    assert metrics[1]["nan_steps"] == 1.0
    assert distance(after, clean) == 0.0


def test_the_ratio_is_exactly_one_on_the_first_update_and_moves_on_later_ones(tiny_model, make_batch):
    once, _ = run(tiny_model, [make_batch()])
    assert (once[0]["ratio_mean"], once[0]["clip_fraction"]) == (1.0, 0.0)
    config = TorchBackendConfig(dtype="float64", optimizer=AdamWConfig(lr=0.05))
    more, _ = run(tiny_model, [make_batch()], config, epochs=3, clip_eps=0.01)
    assert more[0]["ratio_mean"] != 1.0
    assert more[0]["clip_fraction"] > 0


def test_separately_scored_old_logprobs_equal_those_of_the_update_bit_for_bit(tiny_model, make_batch):
    """Two epochs score first; their mismatch figures are those of the update's own forward pass."""
    config = TorchBackendConfig(optimizer=AdamWConfig(lr=LR))
    one, _ = run(tiny_model, [make_batch()], config)
    two, _ = run(tiny_model, [make_batch()], config, epochs=2)
    for name in ("logprob_abs_diff_max", "logprob_abs_diff_mean", "mismatch_kl"):
        assert one[0][name] == pytest.approx(two[0][name], rel=1e-12)
    assert one[0]["logprob_abs_diff_max"] == two[0]["logprob_abs_diff_max"] > 0


def test_minibatches_are_optimizer_steps_of_their_own(tiny_model, make_batch):
    batch = make_batch(split=False)
    metrics, weights = run(tiny_model, [batch], minibatches=2, old_logprobs="rollout")
    again, same = run(tiny_model, [batch], minibatches=2, old_logprobs="rollout")
    _, whole = run(tiny_model, [batch], old_logprobs="rollout")
    assert plain(metrics[0]) == plain(again[0])
    assert distance(weights, same) == 0.0
    assert metrics[0]["micro_batches"] == 2.0
    assert distance(weights, whole) > 0


def test_the_learning_rate_follows_the_number_of_updates(tiny_model, make_batch):
    from miles_megatron.schedules import ScheduleConfig

    config = settings(schedule=ScheduleConfig(warmup_updates=4))
    metrics, _ = run(tiny_model, [make_batch(step=0), make_batch(step=1)], config, epochs=2)
    assert [m["lr"] for m in metrics] == pytest.approx([LR * 2 / 4, LR])


def test_a_kl_penalty_in_the_reward_equals_rewards_lowered_by_hand(tiny_model, make_batch):
    """After one step the policy has left the reference; the second step's rewards lose coef * sum of k1."""
    first, second, coef = make_batch(step=0), make_batch(step=1, seed=9), 0.2
    algorithm = AlgorithmConfig(kl_coef=coef, kl_in="reward")
    reference = Reference(tiny_model, AlgorithmConfig())
    reference.step(first)
    sums = {}
    for s in second.sequences:
        now = reference.token_logprobs(reference.model, s, 1.0)
        then = dict(reference.token_logprobs(reference.initial, s, 1.0))
        key = (s.group_id, s.rollout_id)
        sums[key] = sums.get(key, 0.0) + sum(float(logp.detach() - then[t].detach()) for t, logp in now)
    lowered = tuple(replace(s, reward=s.reward - coef * sums[s.group_id, s.rollout_id]) for s in second.sequences)
    expected = reference.step(TrainBatch(step=1, sequences=lowered))
    metrics, weights = run(tiny_model, [first, second], **algorithm.model_dump(exclude_unset=True))
    assert metrics[1]["loss"] == pytest.approx(expected["loss"], abs=1e-9)
    assert metrics[1]["kl"] > 0
    assert distance(weights, dict(reference.model.named_parameters())) <= 1e-8


def test_sft_is_the_mean_cross_entropy_and_learns(tiny_model, make_batch):
    batch = make_batch()
    zeros = tuple(replace(s, rollout_logprobs=np.zeros(s.num_tokens, np.float32), reward=0.0) for s in batch.sequences)
    batch = replace(batch, sequences=zeros)
    config = TorchBackendConfig(dtype="float64", optimizer=AdamWConfig(lr=0.01))
    metrics, _ = run(tiny_model, [batch] * 12, config, loss="sft")
    reference = Reference(tiny_model, AlgorithmConfig())
    logprobs = [float(p.detach()) for s in zeros for _, p in reference.token_logprobs(reference.model, s, 1.0)]
    assert metrics[0]["loss"] == pytest.approx(-sum(logprobs) / len(logprobs), abs=1e-10)
    assert metrics[-1]["loss"] < metrics[0]["loss"] / 2
    assert metrics[0]["logprob_abs_diff_max"] == metrics[0]["advantage_abs_mean"] == 0.0


def test_float32_gradients_of_another_split_stay_within_a_millionth(tiny_model, rich):
    batches, algorithm, _ = rich
    single = TorchBackendConfig(optimizer=AdamWConfig(lr=LR))
    whole, _ = run(tiny_model, batches[:1], single, **algorithm)
    cut, _ = run(tiny_model, batches[:1], single.model_copy(update={"tokens_per_micro_batch": 25}), **algorithm)
    assert whole[0]["grad_norm"] == pytest.approx(cut[0]["grad_norm"], rel=1e-6)
    assert whole[0]["logprob_abs_diff_max"] == cut[0]["logprob_abs_diff_max"]


def test_tokens_after_the_last_trained_one_change_nothing(tiny_model, make_batch):
    def longer(s):
        tail = np.arange(5) % 3
        return replace(
            s,
            ids=np.concatenate([s.ids, tail]).astype(np.int32),
            loss_mask=np.concatenate([s.loss_mask, np.zeros(5, dtype=bool)]),
            rollout_logprobs=np.concatenate([s.rollout_logprobs, np.full(5, np.nan, np.float32)]),
            weight_versions=np.concatenate([s.weight_versions, np.full(5, -1)]),
        )

    batch = make_batch()
    (bare, weights), (tailed, other) = (
        run(tiny_model, [b], kl_coef=0.1)
        for b in (batch, replace(batch, sequences=tuple(longer(s) for s in batch.sequences)))
    )
    assert bare[0]["train_tokens"] + 5 * len(batch.sequences) == tailed[0]["train_tokens"]
    for name in ("loss", "grad_norm", "entropy", "mismatch_kl", "advantage_abs_mean", "trained_tokens"):
        assert bare[0][name] == pytest.approx(tailed[0][name], abs=1e-10)
    assert distance(weights, other) <= 1e-10


@pytest.mark.parametrize("reduction", ["token_mean", "sequence_mean"])
def test_a_rollout_cut_into_siblings_trains_the_same(tiny_model, make_batch, reduction):
    def halves(s):
        place = np.flatnonzero(s.loss_mask)[: s.loss_mask.sum() // 2]
        early = np.zeros_like(s.loss_mask)
        early[place] = True
        return replace(s, loss_mask=early), replace(s, loss_mask=s.loss_mask & ~early)

    batch = make_batch(split=False)
    cut = replace(batch, sequences=tuple(half for s in batch.sequences for half in halves(s)))
    (whole, weights), (split, other) = (run(tiny_model, [b], reduction=reduction) for b in (batch, cut))
    for name in ("loss", "grad_norm", "advantage_abs_mean", "logprob_abs_diff_mean"):
        assert whole[0][name] == pytest.approx(split[0][name], abs=1e-10)
    assert distance(weights, other) <= 1e-10


def test_a_token_id_outside_the_vocabulary_is_named(tiny_model, make_batch):
    from miles_core.errors import TrainError

    batch = make_batch()
    stray = replace(batch.sequences[3], ids=batch.sequences[3].ids + np.int32(40))
    with pytest.raises(TrainError, match=r"rollout r2: expected token ids from 0 to 47"):
        run(tiny_model, [replace(batch, sequences=(*batch.sequences[:3], stray))])


def test_grpo_makes_rewarded_tokens_likelier(tiny_model):
    """One-token rollouts sampled from the policy itself; a token below 12 is worth 1."""
    from miles_core.batch import TrainSequence

    generator, shares = torch.Generator().manual_seed(0), []
    config = TorchBackendConfig(optimizer=AdamWConfig(lr=0.01))
    with TorchBackend(config, model_dir=tiny_model, algorithm=AlgorithmConfig(), seed=1) as backend:
        engine = load_causal_lm(tiny_model)
        for step in range(12):
            engine.load_state_dict(dict(backend.weights()), strict=False)
            sequences = []
            for group in range(4):
                with torch.no_grad():
                    table = packed_forward(engine, torch.tensor([group, 7]), [2])[1].log_softmax(0)
                for index in range(8):
                    token = int(torch.multinomial(table.exp(), 1, generator=generator))
                    sequences.append(
                        TrainSequence(
                            group_id=str(group),
                            rollout_id=str(index),
                            ids=np.array([group, 7, token], np.int32),
                            loss_mask=np.array([False, False, True]),
                            rollout_logprobs=np.array([0, 0, table[token]], np.float32),
                            weight_versions=np.array([-1, -1, step]),
                            reward=float(token < 12),
                        )
                    )
            metrics = backend.step(TrainBatch(step=step, sequences=tuple(sequences)))
            assert metrics["logprob_abs_diff_max"] < 1e-6
            shares.append(sum(s.reward for s in sequences) / len(sequences))
    assert sum(shares[:2]) / 2 < 0.6
    assert sum(shares[-2:]) / 2 > 0.9
