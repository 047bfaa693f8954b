"""Two gloo processes against one, in float64: the split over ranks changes nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from miles_megatron.algorithm import AlgorithmConfig
from miles_megatron.torch_backend import AdamWConfig, TorchBackend, TorchBackendConfig

CONFIG = {"dtype": "float64", "tokens_per_micro_batch": 30}
ONE_UPDATE = {"kl_coef": 0.1, "entropy_coef": 0.05, "correction": "tis", "reduction": "sequence_mean"}
SEVERAL = {"epochs": 2, "minibatches": 2, "kl_coef": 0.1, "kl_in": "reward"}

RANK = """
import importlib.util, json, sys
from dataclasses import replace
from pathlib import Path
from safetensors.torch import save_file
from miles_megatron.algorithm import AlgorithmConfig
from miles_megatron.torch_backend import AdamWConfig, TorchBackend, TorchBackendConfig

job = json.loads(sys.argv[1])
rank, out = int(sys.argv[2]), Path(job["out"])
spec = importlib.util.spec_from_file_location("shared", job["conftest"])
shared = importlib.util.module_from_spec(spec)
spec.loader.exec_module(shared)
batches = [shared._batch(step=0, seed=5), shared._batch(step=1, seed=6, split=False)]
lonely = replace(batches[0], step=2, sequences=batches[0].sequences[:1])
config = TorchBackendConfig(optimizer=AdamWConfig(lr=3e-3, max_grad_norm=0.5), **job["config"])
metrics = {}
for name, algorithm, steps in (("one", job["one_update"], [*batches, lonely]), ("several", job["several"], batches)):
    with TorchBackend(config, model_dir=Path(job["model"]), algorithm=AlgorithmConfig(**algorithm), rank=rank,
                      world_size=2, rendezvous=f"file://{out}/meet-{name}", seed=7) as backend:
        metrics[name] = [dict(backend.step(batch)) for batch in steps]
        weights = {key: tensor.clone() for key, tensor in backend.weights()}
        assert bool(weights) == (rank == 0)
        if rank == 0:
            save_file(weights, str(out / f"{name}.safetensors"))
        backend.save(out / f"state-{name}")
        backend.export(out / f"export-{name}")
        if name == "one":
            backend.load(Path(job["resume"]))
            metrics["resumed"] = [dict(backend.step(batches[1]))]
(out / f"metrics-{rank}.json").write_text(json.dumps(metrics))
"""


def config():
    return TorchBackendConfig(optimizer=AdamWConfig(lr=3e-3, max_grad_norm=0.5), **CONFIG)


@pytest.fixture(scope="module")
def batches(make_batch):
    from dataclasses import replace

    full = [make_batch(step=0, seed=5), make_batch(step=1, seed=6, split=False)]
    return [*full, replace(full[0], step=2, sequences=full[0].sequences[:1])]


@pytest.fixture(scope="module")
def single(tiny_model, batches, tmp_path_factory):
    """Metrics and weights of one rank, the state after the first step, and the metrics of a step from it."""
    out, results = tmp_path_factory.mktemp("single"), {}
    for name, algorithm, steps in (("one", ONE_UPDATE, batches), ("several", SEVERAL, batches[:2])):
        with TorchBackend(config(), model_dir=tiny_model, algorithm=AlgorithmConfig(**algorithm), seed=7) as backend:
            metrics = []
            for number, batch in enumerate(steps):
                metrics.append(backend.step(batch))
                if (name, number) == ("one", 0):
                    backend.save(out / "state")
            results[name] = (metrics, {key: tensor.clone() for key, tensor in backend.weights()})
    return out / "state", results


@pytest.fixture(scope="module")
def pair(tiny_model, single, tmp_path_factory):
    """The folder that two ranks wrote."""
    out = tmp_path_factory.mktemp("pair")
    job = {
        "out": str(out),
        "model": str(tiny_model),
        "conftest": str(Path(__file__).with_name("conftest.py")),
        "config": CONFIG,
        "one_update": ONE_UPDATE,
        "several": SEVERAL,
        "resume": str(single[0]),
    }
    command = [sys.executable, "-c", RANK, json.dumps(job)]
    ranks = [subprocess.Popen([*command, str(rank)], stderr=subprocess.PIPE, text=True) for rank in range(2)]
    try:
        errors = [process.communicate(timeout=240)[1] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0, 0], "\n".join(errors)
    return out


def without_times(metrics):
    return {k: v for k, v in metrics.items() if not k.startswith("time/") and k != "micro_batches"}


def read(pair, rank):
    return json.loads((pair / f"metrics-{rank}.json").read_text())


def test_metrics_are_equal_on_both_ranks(pair):
    for name, steps in read(pair, 0).items():
        assert [without_times(m) for m in steps] == [without_times(m) for m in read(pair, 1)[name]]


@pytest.mark.parametrize("name", ["one", "several"])
def test_metrics_and_weights_equal_those_of_one_rank(pair, single, name):
    metrics, weights = single[1][name]
    for expected, found in zip(metrics, read(pair, 0)[name], strict=True):
        assert without_times(found) == pytest.approx(without_times(expected), abs=1e-10)
    found = load_file(pair / f"{name}.safetensors")
    assert found.keys() == weights.keys()
    assert max((found[key] - weights[key]).abs().max().item() for key in weights) <= 1e-10


def test_a_state_of_one_rank_continues_on_two(pair, single):
    expected = single[1]["one"][0][1]
    assert without_times(read(pair, 0)["resumed"][0]) == pytest.approx(without_times(expected), abs=1e-10)


def test_a_state_of_two_ranks_continues_on_one(pair, single, tiny_model, batches):
    with TorchBackend(config(), model_dir=tiny_model, algorithm=AlgorithmConfig(**ONE_UPDATE), seed=7) as backend:
        backend.load(pair / "state-one")
        state = dict(backend.weights())
        expected = single[1]["one"][1]
        assert max((state[key] - expected[key]).abs().max().item() for key in expected) <= 1e-10
        metrics = backend.step(batches[1])
    assert metrics["nan_steps"] == 0.0
    assert metrics["trained_tokens"] == batches[1].num_trainable


def test_the_export_of_two_ranks_is_whole(pair):
    from transformers import AutoModelForCausalLM

    state = AutoModelForCausalLM.from_pretrained(pair / "export-one").state_dict()
    found = load_file(pair / "one.safetensors")
    assert all(torch.equal(state[key], found[key]) for key in found)
