"""Facts about the packed forward pass that trainer and engine share."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from miles_core.errors import TrainError
from miles_megatron.models import lm_head, load_causal_lm, log_distribution, packed_forward, packed_hidden

LENGTHS = [1, 2, 3, 63, 64, 65, 130, 17, 600]


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("qwen3")
    config = Qwen3Config(
        vocab_size=108, hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=1024, tie_word_embeddings=True,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Path:
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("llama")
    config = LlamaConfig(
        vocab_size=100, hidden_size=72, intermediate_size=200, num_hidden_layers=2, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=1024, attention_bias=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(params=["qwen3", "llama"])
def folder(request) -> Path:
    return request.getfixturevalue(request.param)


def sequences(lengths, seed=0, vocab=100):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, vocab, (n,), generator=generator) for n in lengths]


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_logits_agree_with_transformers_own_attention(folder):
    model, reference = load_causal_lm(folder), AutoModelForCausalLM.from_pretrained(folder)
    rows = sequences(LENGTHS)
    with torch.no_grad():
        packed = packed_forward(model, torch.cat(rows), LENGTHS).split(LENGTHS)
        for row, logits in zip(rows, packed, strict=True):
            torch.testing.assert_close(logits, reference(row[None]).logits[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("count", [1, 2])
def test_a_sequence_has_the_same_bits_alone_and_in_any_packing(folder, threads, count):
    threads(count)
    model = load_causal_lm(folder)
    rows = sequences(LENGTHS)
    with torch.no_grad():
        alone = [packed_forward(model, row, [len(row)]) for row in rows]
        for order in (range(9), reversed(range(9)), [4, 0, 7], [8, 8, 8]):
            picked = list(order)
            lengths = [LENGTHS[i] for i in picked]
            together = packed_forward(model, torch.cat([rows[i] for i in picked]), lengths).split(lengths)
            assert all(torch.equal(alone[i], y) for i, y in zip(picked, together, strict=True))


def test_one_and_two_threads_give_the_same_bits(folder, threads):
    model = load_causal_lm(folder)
    ids = torch.cat(sequences(LENGTHS))
    with torch.no_grad():
        threads(1)
        one = packed_forward(model, ids, LENGTHS)
        threads(2)
        assert torch.equal(one, packed_forward(model, ids, LENGTHS))


@settings(max_examples=15, deadline=None)
@given(lengths=st.lists(st.integers(1, 90), min_size=1, max_size=9), seed=st.integers(0, 99))
def test_the_last_sequence_of_any_packing_equals_itself_alone(qwen3, lengths, seed):
    model = load_causal_lm(qwen3)
    rows = sequences(lengths, seed)
    with torch.no_grad():
        packed = packed_forward(model, torch.cat(rows), lengths).split(lengths)
        assert torch.equal(packed[-1], packed_forward(model, rows[-1], [lengths[-1]]))


def test_the_prefix_of_a_sequence_has_the_same_bits_as_the_prefix_alone(folder):
    model = load_causal_lm(folder)
    (row,) = sequences([600])
    with torch.no_grad():
        whole = packed_forward(model, row, [600])
        for length in (1, 5, 64, 65, 511, 512, 513):
            assert torch.equal(whole[:length], packed_forward(model, row[:length], [length]))


def test_gradients_equal_those_of_transformers_attention(folder):
    model, reference = load_causal_lm(folder), AutoModelForCausalLM.from_pretrained(folder)
    lengths = [5, 64, 600, 33]
    rows = sequences(lengths)
    scores = packed_forward(model, torch.cat(rows), lengths).log_softmax(-1)[:, 7]
    scores.mean().backward()
    expected = torch.cat([reference(row[None]).logits[0].log_softmax(-1)[:, 7] for row in rows])
    expected.mean().backward()
    for (name, ours), theirs in zip(model.named_parameters(), reference.parameters(), strict=True):
        scale = theirs.grad.abs().max()
        assert (ours.grad - theirs.grad).abs().max() <= 2e-5 * scale, name


def test_the_head_in_chunks_gives_the_same_bits(folder):
    model = load_causal_lm(folder)
    ids = torch.cat(sequences(LENGTHS))
    with torch.no_grad():
        hidden = packed_hidden(model, ids, LENGTHS)
        whole = packed_forward(model, ids, LENGTHS)
        assert torch.equal(whole, torch.cat([lm_head(model, part) for part in hidden.split(37)]))


def test_the_temperature_as_number_and_as_tensor_gives_the_same_bits():
    logits = torch.randn(7, 333, generator=torch.Generator().manual_seed(0)) * 5
    for temperature in (1.0, 0.7, 1.3):
        column = torch.full((7, 1), temperature)
        assert torch.equal(log_distribution(logits, temperature), log_distribution(logits, column))
    assert torch.equal(log_distribution(logits), logits.log_softmax(-1))


def test_saving_and_loading_keeps_every_bit_and_the_architecture(folder, tmp_path):
    model = load_causal_lm(folder)
    model.save_pretrained(tmp_path)
    before, after = AutoModelForCausalLM.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(before) is type(after)
    assert list(model.state_dict()) == list(before.state_dict())
    assert all(
        torch.equal(a, b) for a, b in zip(before.state_dict().values(), after.state_dict().values(), strict=True)
    )
    before.config._name_or_path = after.config._name_or_path
    assert before.config.to_dict() == after.config.to_dict()


def test_a_sliding_window_is_refused_with_the_reason(tmp_path):
    config = MistralConfig(
        vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, sliding_window=64,
    )  # fmt: skip
    MistralForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(TrainError, match="sliding window of 64"):
        load_causal_lm(tmp_path)


def test_a_folder_without_a_model_is_one_sentence(tmp_path):
    with pytest.raises(TrainError, match=r"expected a Hugging Face model folder with config\.json"):
        load_causal_lm(tmp_path / "nowhere")


def test_lengths_that_do_not_cover_the_ids_are_refused(qwen3):
    with pytest.raises(ValueError, match="sum to 4"):
        packed_hidden(load_causal_lm(qwen3), torch.zeros(4, dtype=torch.long), [3])
