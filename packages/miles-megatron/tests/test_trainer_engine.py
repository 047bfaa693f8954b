"""The trainer against the local engine itself, over training steps: the same weights give the same bits."""

import asyncio

import numpy as np
import pytest

from miles_core.batch import TrainBatch, TrainSequence
from miles_megatron.algorithm import AlgorithmConfig
from miles_megatron.engine.config import EngineConfig
from miles_megatron.engine.core import EngineCore
from miles_megatron.engine.sampling_params import SamplingParams
from miles_megatron.torch_backend import AdamWConfig, TorchBackend, TorchBackendConfig


async def sample(core, *, step, temperature):
    """Twelve rollouts of three prompts, in flight together; the reward counts even tokens."""
    prompts = [[3 + g, *range(g, g + 5 + 20 * g)] for g in range(3)]
    jobs = [(g, i) for g in range(3) for i in range(4)]
    answers = await asyncio.gather(
        *(
            core.complete(
                prompts[g],
                SamplingParams(
                    temperature=temperature, max_new_tokens=8 + 9 * i, sampling_seed=100 * step + 10 * g + i
                ),
            )
            for g, i in jobs
        )
    )
    return [_sequence(g, i, prompts[g], answer) for (g, i), answer in zip(jobs, answers, strict=True)]


def _sequence(group, index, prompt, answer):
    sampled = np.arange(len(prompt) + len(answer.output_ids)) >= len(prompt)
    return TrainSequence(
        group_id=str(group),
        rollout_id=str(index),
        ids=np.array([*prompt, *answer.output_ids], np.int32),
        loss_mask=sampled,
        rollout_logprobs=np.array([0.0] * len(prompt) + list(answer.logprobs), np.float32),
        weight_versions=np.where(sampled, 0, -1),
        reward=sum(token % 2 == 0 for token in answer.output_ids) / len(answer.output_ids),
    )


async def rounds(model, temperature):
    found = []
    config = TorchBackendConfig(optimizer=AdamWConfig(lr=0.01), tokens_per_micro_batch=150)
    with (
        EngineCore(EngineConfig(context_length=128), model) as core,
        TorchBackend(config, model_dir=model, algorithm=AlgorithmConfig(kl_coef=0.01), seed=0) as backend,
    ):
        for step in range(3):
            sequences = await sample(core, step=step, temperature=temperature)
            batch = TrainBatch(step=step, sequences=tuple(sequences), temperature=temperature)
            found.append(backend.step(batch))
            await core.begin_weight_update()
            await core.stage_weights(backend.weights())
            await core.commit_weights(str(step + 1))
    return found


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_engine_and_trainer_agree_to_the_bit_at_every_step(tiny_model, temperature):
    for metrics in asyncio.run(rounds(tiny_model, temperature)):
        assert metrics["logprob_abs_diff_max"] == 0.0
        assert metrics["mismatch_kl"] == 0.0
        assert metrics["trained_tokens"] > 100
        assert metrics["grad_norm"] > 0
