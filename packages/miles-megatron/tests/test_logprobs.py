import math

import pytest
import torch

from miles_megatron.logprobs import chunked_scores, token_scores


@pytest.fixture
def case():
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(37, 8, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(21, 8, generator=generator, dtype=torch.float64, requires_grad=True)
    return hidden, weight, torch.randint(0, 21, (37,), generator=generator)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.0])
def test_scores_equal_a_double_loop(case, temperature):
    hidden, weight, targets = case
    logits = (hidden @ weight.T).detach()
    scores = token_scores(logits, targets, temperature, entropy_grad=False)
    for row in range(37):
        exps = [math.exp(x / temperature) for x in logits[row].tolist()]
        probabilities = [e / sum(exps) for e in exps]
        assert scores.logprobs[row].item() == pytest.approx(math.log(probabilities[targets[row]]), abs=1e-11)
        assert scores.entropy[row].item() == pytest.approx(-sum(p * math.log(p) for p in probabilities), abs=1e-11)


@pytest.mark.parametrize("rows", [1, 16, 36, 37, 100])
def test_chunks_change_neither_values_nor_gradients(case, rows):
    hidden, weight, targets = case
    found = []
    for chunk in (1000, rows):
        scores = chunked_scores(
            hidden, targets, head=lambda x: x @ weight.T, temperature=0.8, chunk_rows=chunk, entropy_grad=True
        )
        gradients = torch.autograd.grad((scores.logprobs * 1.3 + scores.entropy.square()).sum(), [hidden, weight])
        found.append([scores.logprobs, scores.entropy, *gradients])
    for whole, cut in zip(*found, strict=True):
        assert torch.allclose(whole, cut, atol=1e-12, rtol=0)


def test_the_gradient_passes_a_finite_difference_check(case):
    hidden, weight, targets = case

    def function(h, w):
        scores = chunked_scores(
            h, targets[:5], head=lambda x: x @ w.T, temperature=1.3, chunk_rows=2, entropy_grad=True
        )
        return scores.logprobs, scores.entropy

    assert torch.autograd.gradcheck(function, [hidden[:5].detach().requires_grad_(), weight])


def test_without_entropy_grad_the_entropy_is_a_constant(case):
    hidden, weight, targets = case
    scores = chunked_scores(hidden, targets, head=lambda x: x @ weight.T, temperature=1.0, chunk_rows=8)
    assert scores.logprobs.requires_grad
    assert not scores.entropy.requires_grad


def test_half_precision_logits_are_scored_in_float32():
    logits = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.bfloat16)
    scores = token_scores(logits, torch.tensor([0]), 0.5, entropy_grad=False)
    assert scores.logprobs.dtype == torch.float32
    assert torch.equal(scores.logprobs, (logits.float() / 0.5).log_softmax(-1)[:, 0])


def test_an_impossible_token_adds_no_entropy_and_no_nan_gradient():
    logits = torch.tensor([[0.0, 0.0, -math.inf]], requires_grad=True)
    scores = token_scores(logits, torch.tensor([0]), 1.0, entropy_grad=True)
    assert scores.entropy.item() == pytest.approx(math.log(2.0))
    scores.entropy.sum().backward()
    assert logits.grad.isfinite().all()


def test_the_backward_pass_keeps_no_logits_of_more_than_one_chunk():
    rows, vocab, chunk = 512, 1000, 64
    hidden, weight = torch.randn(rows, 4, requires_grad=True), torch.randn(vocab, 4, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        scores = chunked_scores(
            hidden, torch.zeros(rows, dtype=torch.long), head=lambda x: x @ weight.T, temperature=1.0, chunk_rows=chunk
        )
    scores.logprobs.sum().backward()
    assert sum(kept) < rows * vocab / 10


def test_a_row_has_the_same_bits_in_any_chunk():
    generator = torch.Generator().manual_seed(5)
    hidden, weight = torch.randn(100, 32, generator=generator), torch.randn(300, 32, generator=generator)
    targets = torch.randint(0, 300, (100,), generator=generator)
    whole, cut = (
        chunked_scores(hidden, targets, head=lambda x: x @ weight.T, temperature=0.9, chunk_rows=n) for n in (128, 16)
    )
    assert torch.equal(whole.logprobs[:96], cut.logprobs[:96])
