import contextlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

_SCRIPT = Path(__file__).with_name("fake_engine.py")
_SPEC = importlib.util.spec_from_file_location("miles_sync_fake_engine", _SCRIPT)
_MODULE = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_MODULE)


@pytest.fixture
def start_engine():
    """`start_engine(weights, faults=..., token=...)`: a fake engine on loopback in a thread, stopped after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda weights, **options: stack.enter_context(_MODULE.FakeEngine(weights, **options))


@pytest.fixture
def start_engine_process(tmp_path):
    """`start_engine_process(weights, *faults) -> (url, process)`: a fake engine in a process, ended after the test."""
    started = []

    def start(weights, *faults):
        file = tmp_path / f"engine-{len(started)}.safetensors"
        save_file({name: tensor.contiguous().clone() for name, tensor in weights.items()}, file)
        process = subprocess.Popen(
            [sys.executable, str(_SCRIPT), str(file), *faults],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return f"http://127.0.0.1:{int(process.stdout.readline())}", process

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=10)


@pytest.fixture
def tiny_weights():
    """`tiny_weights(seed)`: named tensors of a two-layer toy model in three element types, a scalar among them."""

    def make(seed):
        random = torch.Generator().manual_seed(seed)
        weights = {"model.embed_tokens.weight": torch.randn(40, 8, generator=random)}
        for layer in range(2):
            prefix = f"model.layers.{layer}"
            for name in ("q_proj", "k_proj", "v_proj"):
                weights[f"{prefix}.self_attn.{name}.weight"] = torch.randn(8, 8, generator=random)
            for name in ("gate_proj", "up_proj"):
                weights[f"{prefix}.mlp.{name}.weight"] = torch.randn(12, 8, generator=random).to(torch.bfloat16)
        weights["model.norm.weight"] = torch.randn(8, generator=random).to(torch.float16)
        weights["scale"] = torch.randn((), generator=random)
        return weights

    return make


@pytest.fixture
def segments():
    """`segments()`: names of the shared-memory segments that this process owns."""
    return lambda: {path.name for path in Path("/dev/shm").glob(f"miles-w-{os.getpid():x}x*")}
