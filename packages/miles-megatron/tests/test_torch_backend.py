import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from miles_core.errors import TrainError
from miles_megatron.algorithm import AlgorithmConfig
from miles_megatron.checkpoint import CheckpointStore
from miles_megatron.schedules import ScheduleConfig
from miles_megatron.torch_backend import AdamWConfig, TorchBackend, TorchBackendConfig

CONFIG = TorchBackendConfig(optimizer=AdamWConfig(lr=3e-3), schedule=ScheduleConfig(warmup_updates=5))
ALGORITHM = AlgorithmConfig(kl_coef=0.1, correction="tis")


def backend_of(model, config=CONFIG, algorithm=ALGORITHM, **more):
    return TorchBackend(config, model_dir=model, algorithm=algorithm, seed=3, **more)


def without_times(metrics):
    return {name: value for name, value in metrics.items() if not name.startswith("time/")}


def test_the_metrics_are_the_documented_ones(tiny_model, make_batch):
    with backend_of(tiny_model) as backend:
        found = backend.step(make_batch())
    assert {name for name in found if not name.startswith("time/")} == {
        *("loss", "grad_norm", "lr", "kl", "entropy", "clip_fraction", "ratio_mean", "advantage_abs_mean"),
        *("mismatch_kl", "logprob_abs_diff_max", "logprob_abs_diff_mean", "train_tokens", "trained_tokens"),
        *("micro_batches", "nan_steps"),
    }
    assert found["train_tokens"] == make_batch().num_tokens
    assert found["trained_tokens"] == make_batch().num_trainable
    assert all(isinstance(value, float) for value in found.values())


@pytest.mark.parametrize("kind", ["tiny_model", "untied_model"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_export_loads_in_transformers_with_the_same_bits(request, make_batch, tmp_path, kind, dtype):
    from transformers import AutoModelForCausalLM

    model = request.getfixturevalue(kind)
    with backend_of(model, TorchBackendConfig(dtype=dtype, optimizer=AdamWConfig(lr=0.01))) as backend:
        backend.step(make_batch())
        backend.export(tmp_path / "export")
        trained = {name: tensor.clone() for name, tensor in backend.weights()}
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "export", dtype="auto")
    state = loaded.state_dict()
    assert {tensor.dtype for tensor in state.values()} == {getattr(torch, dtype)}
    assert all(torch.equal(state[name], tensor) for name, tensor in trained.items())
    assert set(load_file(tmp_path / "export" / "model.safetensors")) == set(trained)
    assert set(trained) == set(load_file(model / "model.safetensors"))
    assert (tmp_path / "export" / "tokenizer.json").read_text() == (model / "tokenizer.json").read_text()
    assert loaded.config._attn_implementation != "miles_packed"


def test_tied_embeddings_are_one_tensor_and_stay_tied(tiny_model, untied_model):
    with backend_of(tiny_model) as backend:
        tied = [name for name, _ in backend.weights()]
    with backend_of(untied_model) as backend:
        untied = [name for name, _ in backend.weights()]
    assert "model.embed_tokens.weight" in tied
    assert sorted(untied) == sorted([*tied, "lm_head.weight"])


def test_weights_before_training_are_those_of_the_folder(tiny_model):
    with backend_of(tiny_model) as backend:
        found = dict(backend.weights())
    original = load_file(tiny_model / "model.safetensors")
    assert found.keys() == original.keys()
    assert all(torch.equal(found[name], original[name]) for name in original)


def test_bfloat16_compute_changes_the_scores_and_leaves_float32_weights(tiny_model, make_batch):
    mixed = TorchBackendConfig(optimizer=AdamWConfig(lr=1e-3), compute_dtype="bfloat16")
    with backend_of(tiny_model) as backend:
        exact = backend.step(make_batch())["logprob_abs_diff_mean"]
    with backend_of(tiny_model, mixed) as backend:
        rounded = backend.step(make_batch())["logprob_abs_diff_mean"]
        assert {tensor.dtype for _, tensor in backend.weights()} == {torch.float32}
    assert rounded != exact
    assert rounded == pytest.approx(exact, rel=0.05)


def test_a_saved_state_continues_with_the_same_bits_as_if_never_stopped(tiny_model, make_batch, tmp_path):
    with backend_of(tiny_model) as backend:
        for step in range(2):
            backend.step(make_batch(step=step, seed=step))
        backend.save(tmp_path / "state")
        expected = without_times(backend.step(make_batch(step=2, seed=2)))
        weights = {name: tensor.clone() for name, tensor in backend.weights()}
    with backend_of(tiny_model) as backend:
        backend.load(tmp_path / "state")
        assert without_times(backend.step(make_batch(step=2, seed=2))) == expected
        assert all(torch.equal(tensor, weights[name]) for name, tensor in backend.weights())


def test_the_state_before_the_first_step_can_be_saved(tiny_model, make_batch, tmp_path):
    with backend_of(tiny_model) as backend:
        backend.save(tmp_path / "state")
        expected = without_times(backend.step(make_batch()))
        backend.load(tmp_path / "state")
        assert without_times(backend.step(make_batch())) == expected


def test_states_that_are_incomplete_or_of_another_model_are_refused(tiny_model, untied_model, tmp_path):
    with backend_of(tiny_model) as backend:
        backend.save(tmp_path / "state")
        shutil.copytree(tmp_path / "state", tmp_path / "short")
        (tmp_path / "short" / "trainer-00000-of-00001.safetensors").unlink()
        with pytest.raises(TrainError, match=r"expected 1 shards .* missing"):
            backend.load(tmp_path / "short")
        shutil.copytree(tmp_path / "state", tmp_path / "cut")
        os.truncate(tmp_path / "cut" / "trainer-00000-of-00001.safetensors", 100)
        with pytest.raises(TrainError, match="cannot be read"):
            backend.load(tmp_path / "cut")
        with pytest.raises(TrainError, match="it is not a checkpoint"):
            backend.load(tmp_path)
        (tmp_path / "short" / "trainer.json").write_text('{"format": 7}')
        with pytest.raises(TrainError, match=r"expected format 1 .* found 7"):
            backend.load(tmp_path / "short")
    with backend_of(untied_model) as backend, pytest.raises(TrainError, match=r"lm_head\.weight has shape None"):
        backend.load(tmp_path / "state")


def test_what_cannot_start_is_refused_in_a_sentence(tiny_model, tmp_path):
    with pytest.raises(TrainError, match=r"config\.json, found none"):
        backend_of(tmp_path)
    with pytest.raises(TrainError, match="expected a rendezvous for 2 ranks"):
        backend_of(tiny_model, rank=0, world_size=2)
    with backend_of(tiny_model), pytest.raises(TrainError, match="one process serves one rank of one job"):
        backend_of(tiny_model, rank=1, world_size=2)


def test_ranks_that_do_not_come_are_named_after_the_deadline(tiny_model, tmp_path):
    config = CONFIG.model_copy(update={"collective_timeout_s": 1.0})
    with pytest.raises(TrainError, match=r"rank 0 of 2: the other ranks were not met at file://.* within 1 s"):
        backend_of(tiny_model, config, rank=0, world_size=2, rendezvous=f"file://{tmp_path}/meet")


JOB = """
import importlib.util, json, sys
from dataclasses import replace
from pathlib import Path
from miles_megatron.algorithm import AlgorithmConfig
from miles_megatron.checkpoint import CheckpointStore
from miles_megatron.torch_backend import AdamWConfig, TorchBackend, TorchBackendConfig

model, root, conftest, steps = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
spec = importlib.util.spec_from_file_location("shared", conftest)
shared = importlib.util.module_from_spec(spec)
spec.loader.exec_module(shared)
backend = TorchBackend(
    TorchBackendConfig.model_validate_json(sys.argv[5]), model_dir=model,
    algorithm=AlgorithmConfig(kl_coef=0.1, correction="tis"), seed=3,
)
store = CheckpointStore(root, keep=2)
latest = store.latest()
if latest:
    backend.load(latest / "trainer")
begin = store.steps()[-1] + 1 if latest else 0
for step in range(begin, steps):
    metrics = backend.step(shared._batch(step=step, seed=step))
    with store.writing(step) as folder:
        backend.save(folder / "trainer")
        backend.export(folder / "export")
        (folder / "metrics.json").write_text(json.dumps(metrics))
    print(step, flush=True)
backend.close()
"""


@pytest.mark.slow
def test_a_job_killed_while_it_trains_and_saves_ends_with_the_bits_of_one_that_was_not(
    tiny_model, make_batch, tmp_path
):
    root = tmp_path / "checkpoints"
    command = [sys.executable, "-c", JOB, str(tiny_model), str(root), str(Path(__file__).with_name("conftest.py"))]
    process = subprocess.Popen(
        [*command, "1000", CONFIG.model_dump_json()], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        for _ in range(3):
            process.stdout.readline()
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
    store = CheckpointStore(root, keep=2)
    survived = store.steps()[-1]
    assert store.latest() is not None
    assert survived >= 2
    steps = survived + 3
    subprocess.run([*command, str(steps), CONFIG.model_dump_json()], capture_output=True, timeout=240, check=True)
    with backend_of(tiny_model) as backend:
        for step in range(steps):
            metrics = backend.step(make_batch(step=step, seed=step))
        backend.save(tmp_path / "uninterrupted")
    last = store.folder(steps - 1)
    name = "trainer-00000-of-00001.safetensors"
    expected, found = load_file(tmp_path / "uninterrupted" / name), load_file(last / "trainer" / name)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[key], found[key]) for key in expected)
    assert without_times(json.loads((last / "metrics.json").read_text())) == without_times(metrics)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_of_each_sequence_alone_differ_by_exactly_zero(tiny_model, make_batch, temperature):
    """What an engine reports that runs one sequence at a time; the trainer packs, cuts and chunks them."""
    from miles_megatron.models import load_causal_lm, log_distribution, packed_forward

    model, batch = load_causal_lm(tiny_model), make_batch(rollouts=16, longest=70, temperature=temperature)
    sequences = []
    for s in batch.sequences:
        ids = torch.from_numpy(s.ids).long()
        with torch.no_grad():
            table = log_distribution(packed_forward(model, ids, [len(ids)]), temperature)
        logprobs = torch.cat([torch.zeros(1), table[:-1].gather(1, ids[1:, None])[:, 0]])
        sequences.append(replace(s, rollout_logprobs=logprobs.numpy()))
    for budget, chunk in ((10_000, 1024), (150, 1024), (400, 16)):
        config = TorchBackendConfig(tokens_per_micro_batch=budget, logprob_chunk_rows=chunk)
        with backend_of(tiny_model, config) as backend:
            found = backend.step(replace(batch, sequences=tuple(sequences)))
        assert found["logprob_abs_diff_max"] == found["mismatch_kl"] == 0.0


def test_old_logprobs_of_the_rollout_give_a_ratio_of_exactly_one_on_equal_weights(tiny_model, make_batch):
    from miles_megatron.models import load_causal_lm, log_distribution, packed_forward

    model, batch = load_causal_lm(tiny_model), make_batch(split=False)
    ids = torch.from_numpy(np.concatenate([s.ids for s in batch.sequences])).long()
    lengths = [s.num_tokens for s in batch.sequences]
    with torch.no_grad():
        table = log_distribution(packed_forward(model, ids, lengths), 1.0)
    chosen = torch.cat([torch.zeros(1), table[:-1].gather(1, ids[1:, None])[:, 0]]).split(lengths)
    sequences = tuple(
        replace(s, rollout_logprobs=logprobs.numpy()) for s, logprobs in zip(batch.sequences, chosen, strict=True)
    )
    algorithm = AlgorithmConfig(old_logprobs="rollout")
    with backend_of(tiny_model, algorithm=algorithm) as backend:
        found = backend.step(replace(batch, sequences=sequences))
    assert found["ratio_mean"] == 1.0
    assert found["logprob_abs_diff_max"] == 0.0
