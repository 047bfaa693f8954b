"""Tiny models and batches that the tests of the training half share."""

import numpy as np
import pytest
import torch
from hypothesis import settings

from miles_core.batch import TrainBatch, TrainSequence

settings.register_profile("unhurried", deadline=None)  # a busy machine is no fault of the code
settings.load_profile("unhurried")


def _write_tiny(folder, *, tie=True, seed=0, heads=4):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=48,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        tie_word_embeddings=tie,
        initializer_range=0.3,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text('{"stands": "for a tokenizer"}')
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A Qwen3 folder of two layers with tied embeddings."""
    return _write_tiny(tmp_path_factory.mktemp("qwen3") / "tied")


@pytest.fixture(scope="session")
def untied_model(tmp_path_factory):
    """The same architecture with a head of its own."""
    return _write_tiny(tmp_path_factory.mktemp("qwen3") / "untied", tie=False)


def _batch(*, step=0, seed=0, rollouts=8, group=4, longest=14, split=True, temperature=1.0):
    """Random rollouts of several lengths; rollout 1 is split into two siblings, rollout 2 has nothing to train."""
    random = np.random.default_rng(seed)
    rewards = random.integers(0, 4, size=rollouts) / 4
    rewards[0], rewards[1] = 0.0, 1.0
    sequences = []
    for rollout in range(rollouts):
        for sibling in range(2 if split and rollout == 1 else 1):
            length = int(random.integers(4, longest + 1))
            mask = random.random(length) < 0.6
            mask[0], mask[-1] = False, True
            if split and rollout == 2:
                mask[:] = False
            logprobs = np.where(mask, -random.random(length) * 5, np.nan)
            sequences.append(
                TrainSequence(
                    group_id=f"g{rollout // group}",
                    rollout_id=f"r{rollout % group}",
                    ids=random.integers(0, 48, size=length).astype(np.int32),
                    loss_mask=mask,
                    rollout_logprobs=logprobs.astype(np.float32),
                    weight_versions=np.where(mask, step, -1) + 0 * sibling,
                    reward=float(rewards[rollout]),
                )
            )
    return TrainBatch(step=step, sequences=tuple(sequences), temperature=temperature)


@pytest.fixture(scope="session")
def make_batch():
    """Builds a batch of a 48-token vocabulary; masked rollout log-probabilities are NaN, so a leak is seen at once."""
    return _batch


@pytest.fixture(scope="session")
def engine_folder(tmp_path_factory):
    """A Qwen3 folder whose generation config names two end ids."""
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("qwen3")
    config = Qwen3Config(
        vocab_size=90,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        eos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=[88, 89])
    model.save_pretrained(folder)
    return folder
