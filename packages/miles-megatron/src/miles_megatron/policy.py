"""What the training step asks of a backend: a model that scores tokens, and collective arithmetic."""

from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor

from miles_megatron.logprobs import TokenScores
from miles_megatron.rows import PackedRows


class Policy(Protocol):
    """The trained model on this rank. Calls that mention all ranks are collective: every rank makes them in order."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def dtype(self) -> torch.dtype:
        """Of log-probabilities and losses: float32, or float64 for a float64 model."""
        ...

    def scores(self, rows: PackedRows, *, temperature: float, entropy_grad: bool) -> TokenScores:
        """Log-probability and entropy of each trained token, `[trained]`, with autograd. All ranks."""
        ...

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of this rank's part of the loss; parts are summed over ranks. All ranks."""
        ...

    def reference(self) -> AbstractContextManager[None]:
        """Inside, `scores` are those of the reference model. All ranks."""
        ...

    def clip_gradients(self) -> float:
        """Norm of the whole gradient before clipping, after which it is at most the configured one. All ranks."""
        ...

    def update(self, *, learning_rate: float) -> None:
        """One optimizer step."""
        ...

    def drop_gradients(self) -> None:
        """Forget the accumulated gradient."""
        ...

    def sum(self, values: Tensor) -> Tensor:
        """Elementwise sum of `[n]` float64 over ranks. All ranks."""
        ...

    def maximum(self, values: Tensor) -> Tensor:
        """Elementwise maximum of `[n]` float64 over ranks. All ranks."""
        ...
