"""Settings of the torch backend. Importing this costs no torch."""

from typing import Literal

from pydantic import Field

from miles_core.config import Config
from miles_megatron.schedules import ScheduleConfig


class AdamWConfig(Config):
    """AdamW without fused kernels, so that the bits do not depend on the number of threads."""

    lr: float = Field(default=1e-6, gt=0)
    """Highest learning rate of the schedule."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of the first moment."""
    beta2: float = Field(default=0.95, ge=0, lt=1)
    """Decay of the second moment."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the root of the second moment."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled decay of matrices; vectors (norms, biases) are not decayed."""
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    """The whole gradient is scaled down to this norm; none turns clipping off."""


class TorchBackendConfig(Config):
    """One rank of FSDP2 training. Determinism is always on."""

    type: Literal["torch"] = "torch"
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the model trains; ranks meet over gloo on `cpu`, over NCCL on `cuda`."""
    dtype: Literal["float32", "float64", "bfloat16"] = "float32"
    """Of the parameters, the optimizer's state and the exported model."""
    compute_dtype: Literal["float32", "float64", "bfloat16"] | None = None
    """Of the forward and backward pass when it differs from `dtype`; gradients are summed in `dtype`."""
    batch_invariant: bool = True
    """Operators whose rows do not depend on the batch: log-probabilities equal the local engine's bit for bit."""
    threads: int = Field(default=1, gt=0)
    """Intra-operator threads of this process; PyTorch has one such setting per process and this one sets it."""
    tokens_per_micro_batch: int = Field(default=8192, gt=0)
    """Tokens of one forward and backward pass on one rank."""
    oversize: Literal["alone", "refuse"] = "alone"
    """A sequence above that budget: a micro-batch of its own, or an error that says how long it is."""
    logprob_chunk_rows: int = Field(default=1024, gt=0)
    """Tokens whose logits are held at a time."""
    collective_timeout_s: float = Field(default=600.0, gt=0)
    """Deadline of every meeting of the ranks."""
    optimizer: AdamWConfig = AdamWConfig()
    """The optimizer."""
    schedule: ScheduleConfig = ScheduleConfig()
    """Shape of the learning rate over updates."""
