import math

import pytest
import torch

from miles_core.errors import PluginError
from miles_megatron.algorithm import AlgorithmConfig
from miles_megatron.corrections import choose_correction
from miles_megatron.losses import LossTokens, choose_loss


@pytest.fixture
def tokens():
    generator = torch.Generator().manual_seed(3)
    old = -torch.rand(60, generator=generator, dtype=torch.float64) * 4
    return LossTokens(
        logprobs=(old + torch.randn(60, generator=generator, dtype=torch.float64) * 0.5).requires_grad_(),
        old_logprobs=old,
        advantages=torch.randn(60, generator=generator, dtype=torch.float64),
        sequence=torch.zeros(60, dtype=torch.long),
    )


def one(logprob, old, advantage):
    values = [torch.tensor([x], dtype=torch.float64) for x in (logprob, old, advantage)]
    return LossTokens(
        logprobs=values[0].requires_grad_(),
        old_logprobs=values[1],
        advantages=values[2],
        sequence=torch.zeros(1, dtype=torch.long),
    )


def loop_ppo(logprob, old, advantage, low, high, dual):
    ratio = math.exp(min(max(logprob - old, -20.0), 20.0))
    loss = max(-ratio * advantage, -min(max(ratio, 1 - low), 1 + high) * advantage)
    return min(-dual * advantage, loss) if dual and advantage < 0 else loss


@pytest.mark.parametrize(
    "settings",
    [{}, {"clip_eps": 0.1, "clip_eps_high": 0.3}, {"dual_clip": 1.5}, {"clip_eps": 0.9, "dual_clip": 1.05}],
)
def test_ppo_equals_a_loop_over_tokens(tokens, settings):
    algorithm = AlgorithmConfig(**settings)
    found = choose_loss("ppo")(tokens, algorithm).loss.tolist()
    low, high, dual = algorithm.clip_eps, algorithm.clip_eps_high or algorithm.clip_eps, algorithm.dual_clip
    inputs = (tokens.logprobs.tolist(), tokens.old_logprobs.tolist(), tokens.advantages.tolist())
    expected = [loop_ppo(*values, low, high, dual) for values in zip(*inputs, strict=True)]
    assert found == pytest.approx(expected, abs=1e-13)


@pytest.mark.parametrize("settings", [{}, {"clip_eps": 0.1, "clip_eps_high": 0.3}, {"dual_clip": 1.5}])
@pytest.mark.parametrize("loss", ["ppo", "sft"])
def test_the_gradient_equals_finite_differences(tokens, settings, loss):
    algorithm = AlgorithmConfig(**settings)

    def total(logprobs):
        moved = LossTokens(
            logprobs=logprobs,
            old_logprobs=tokens.old_logprobs,
            advantages=tokens.advantages,
            sequence=tokens.sequence,
        )
        return choose_loss(loss)(moved, algorithm).loss

    total(tokens.logprobs).sum().backward()
    nudge = 1e-6
    base = tokens.logprobs.detach()
    numeric = (total(base + nudge) - total(base - nudge)) / (2 * nudge)
    assert torch.allclose(tokens.logprobs.grad, numeric, atol=1e-7)


def test_clipping_by_hand():
    ppo, algorithm = choose_loss("ppo"), AlgorithmConfig(clip_eps=0.2, clip_eps_high=0.4)
    above = ppo(one(math.log(2.0), 0.0, 1.0), algorithm)  # ratio 2 against a ceiling of 1.4
    below = ppo(one(math.log(0.5), 0.0, -1.0), algorithm)  # ratio 0.5 against a floor of 0.8
    assert (above.loss.item(), below.loss.item()) == pytest.approx((-1.4, 0.8))
    assert above.clipped.item()
    assert below.clipped.item()
    free = ppo(one(math.log(2.0), 0.0, -1.0), algorithm)  # a bad token that became likelier is not protected
    assert free.loss.item() == pytest.approx(2.0)
    assert not free.clipped.item()
    assert free.ratio.item() == pytest.approx(2.0)


def test_dual_clip_bounds_the_loss_of_a_bad_token_and_leaves_a_good_one():
    ppo, algorithm = choose_loss("ppo"), AlgorithmConfig(dual_clip=3.0)
    assert ppo(one(math.log(50.0), 0.0, -2.0), algorithm).loss.item() == pytest.approx(6.0)
    assert ppo(one(math.log(0.01), 0.0, 2.0), algorithm).loss.item() == pytest.approx(-0.02)


def test_outside_the_clamp_the_ratio_stays_finite_and_the_gradient_is_zero():
    tokens = one(0.0, -1000.0, -1.0)
    loss = choose_loss("ppo")(tokens, AlgorithmConfig())
    loss.loss.sum().backward()
    assert loss.loss.item() == pytest.approx(math.exp(20.0))
    assert tokens.logprobs.grad.item() == 0.0


def test_on_the_old_policy_the_gradient_is_minus_the_advantage():
    tokens = one(-1.5, -1.5, 0.7)
    choose_loss("ppo")(tokens, AlgorithmConfig()).loss.sum().backward()
    assert tokens.logprobs.grad.item() == pytest.approx(-0.7)


def test_sft_is_minus_the_log_probability(tokens):
    assert choose_loss("sft")(tokens, AlgorithmConfig(loss="sft")).loss.tolist() == (-tokens.logprobs).tolist()


def test_tis_truncates_the_importance_weight_and_carries_no_gradient():
    old = torch.tensor([-1.0, -1.0, -1.0], dtype=torch.float64, requires_grad=True)
    rollout = torch.tensor([-1.0, -1.5, -3.0], dtype=torch.float64)
    weights = choose_correction("tis")(old, rollout, 2.0)
    assert weights.tolist() == pytest.approx([1.0, math.exp(0.5), 2.0])
    assert not weights.requires_grad


def test_no_correction_is_a_weight_of_one():
    assert choose_correction("none")(torch.tensor([-1.0, -9.0]), torch.tensor([-3.0, 0.0]), 2.0).tolist() == [1.0, 1.0]


def test_a_function_of_another_shape_is_refused():
    with pytest.raises(PluginError, match=r"expected join\(tokens, algorithm\)"):
        choose_loss("shlex:join")
    with pytest.raises(PluginError, match="choose one of ppo, sft"):
        choose_loss("zzz")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"reduction": "fixed_length"}, "expected fixed_length"),
        ({"fixed_length": 5}, "expected fixed_length"),
        ({"correction": "tis", "old_logprobs": "rollout"}, "would always be 1"),
        ({"loss": "sft", "correction": "tis"}, "it has no rollouts"),
        ({"dual_clip": 1.0}, "greater than 1"),
        ({"clip_epsilon": 0.2}, "Extra inputs"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        AlgorithmConfig(**settings)
