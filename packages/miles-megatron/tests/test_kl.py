import math

import pytest
import torch

from miles_megatron.algorithm import AlgorithmConfig
from miles_megatron.kl import kl_estimate

FORMULAS = {
    "k1": lambda x: x,
    "k2": lambda x: x**2 / 2,
    "k3": lambda x: math.exp(-x) - 1 + x,
    "low_variance": lambda x: max(-10, min(10, math.exp(-max(-20, min(20, x))) - 1 + max(-20, min(20, x)))),
}


@pytest.fixture
def pair():
    generator = torch.Generator().manual_seed(0)
    logprobs = -torch.rand(50, generator=generator, dtype=torch.float64) * 6
    return logprobs.requires_grad_(), -torch.rand(50, generator=generator, dtype=torch.float64) * 6


@pytest.mark.parametrize("kind", FORMULAS)
def test_each_estimator_equals_its_formula_token_by_token(pair, kind):
    logprobs, reference = pair
    expected = [FORMULAS[kind](a - b) for a, b in zip(logprobs.tolist(), reference.tolist(), strict=True)]
    assert kl_estimate(kind, logprobs, reference).tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("kind", FORMULAS)
def test_the_gradient_equals_finite_differences(pair, kind):
    logprobs, reference = pair
    kl_estimate(kind, logprobs, reference).sum().backward()
    base, nudge = logprobs.detach(), 1e-6
    numeric = (kl_estimate(kind, base + nudge, reference) - kl_estimate(kind, base - nudge, reference)) / (2 * nudge)
    assert torch.allclose(logprobs.grad, numeric, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kind", FORMULAS)
def test_equal_policies_have_exactly_no_divergence(kind):
    same = torch.tensor([-0.1, -7.3, 0.0])
    assert kl_estimate(kind, same, same).tolist() == [0.0, 0.0, 0.0]


def test_k3_is_never_negative_even_where_float32_cancels():
    x = torch.logspace(-7, 0, 200)
    assert (kl_estimate("k3", x, torch.zeros(200)) >= 0).all()
    assert kl_estimate("k3", torch.tensor([1e-4]), torch.tensor([0.0])).item() == pytest.approx(5e-9, rel=0.5)


def test_low_variance_stays_finite_where_k3_overflows():
    logprobs, reference = torch.tensor([-200.0]), torch.tensor([0.0])
    assert kl_estimate("k3", logprobs, reference).isinf().all()
    assert kl_estimate("low_variance", logprobs, reference).item() == 10.0


def test_the_expectations_of_k1_and_k3_are_the_divergence():
    p, q = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    exact = (p * (p / q).log()).sum().item()
    for kind in ("k1", "k3"):
        assert (p * kl_estimate(kind, p.log(), q.log())).sum().item() == pytest.approx(exact)


def test_the_default_estimator_depends_on_where_the_term_enters():
    assert AlgorithmConfig().kl_estimator == "k3"
    assert AlgorithmConfig(kl_in="reward").kl_estimator == "k1"
    assert AlgorithmConfig(kl_in="reward", kl_kind="k2").kl_estimator == "k2"
