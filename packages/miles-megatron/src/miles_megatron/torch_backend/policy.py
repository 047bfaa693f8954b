"""The torch backend's policy: sharded model, reference weights and AdamW."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from miles_megatron.logprobs import TokenScores
from miles_megatron.rows import PackedRows
from miles_megatron.torch_backend.config import AdamWConfig
from miles_megatron.torch_backend.ranks import Ranks
from miles_megatron.torch_backend.sharded_model import ScoringModel, local, local_parameters


class TorchPolicy:
    """`miles_megatron.policy.Policy` over FSDP2. with_reference keeps a second copy of this rank's initial shards."""

    def __init__(self, model: ScoringModel, ranks: Ranks, config: AdamWConfig, *, with_reference: bool) -> None:
        self.rank, self.world_size, self.device = ranks.rank, ranks.world_size, ranks.device
        self.model, self.shards = model, local_parameters(model)
        self.optimizer = _adamw(self.shards, config)
        self._ranks, self._max_norm = ranks, config.max_grad_norm
        self._reference = {name: shard.clone() for name, shard in self.shards.items()} if with_reference else None

    @property
    def dtype(self) -> torch.dtype:
        """Of log-probabilities and losses."""
        wide = any(shard.dtype == torch.float64 for shard in self.shards.values())
        return torch.float64 if wide else torch.float32

    def scores(self, rows: PackedRows, *, temperature: float, entropy_grad: bool) -> TokenScores:
        """Log-probability and entropy of each trained token, `[trained]`. Collective."""
        scores: TokenScores = self.model(rows, temperature, entropy_grad)
        return TokenScores(scores.logprobs.to(self.dtype), scores.entropy.to(self.dtype))

    def backward(self, loss: Tensor) -> None:
        """Add this rank's gradient; FSDP sums over ranks. Collective."""
        loss.backward()

    @contextmanager
    def reference(self) -> Iterator[None]:
        """The initial weights for the time of the block. Collective."""
        if self._reference is None:
            raise AssertionError("the policy was built without a reference.")
        current = {name: shard.clone() for name, shard in self.shards.items()}
        self._put(self._reference)
        try:
            yield
        finally:
            self._put(current)

    @torch.no_grad()
    def _put(self, values: dict[str, Tensor]) -> None:
        for name, shard in self.shards.items():
            shard.copy_(values[name])

    @torch.no_grad()
    def clip_gradients(self) -> float:
        """Norm of the whole gradient, which is then at most `max_grad_norm`. Collective."""
        gradients = [local(p.grad) for p in self.model.parameters() if p.grad is not None]
        squares = [torch.linalg.vector_norm(g, dtype=torch.float64).square() for g in gradients]
        total = torch.stack(squares).sum() if squares else torch.zeros((), dtype=torch.float64, device=self.device)
        norm = float(self._ranks.sum(total[None]).sqrt())
        if self._max_norm is not None and self._max_norm < norm < float("inf"):
            for gradient in gradients:
                gradient.mul_(self._max_norm / norm)
        return norm

    def update(self, *, learning_rate: float) -> None:
        """One AdamW step on this rank's shards."""
        for parameter, (_, shard) in zip(self.model.parameters(), self.shards.items(), strict=True):
            shard.grad = None if parameter.grad is None else local(parameter.grad)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()

    def drop_gradients(self) -> None:
        """Forget the accumulated gradient."""
        self.model.zero_grad(set_to_none=True)
        self.optimizer.zero_grad(set_to_none=True)

    def sum(self, values: Tensor) -> Tensor:
        """Elementwise sum over ranks. Collective."""
        return self._ranks.sum(values)

    def maximum(self, values: Tensor) -> Tensor:
        """Elementwise maximum over ranks. Collective."""
        return self._ranks.maximum(values)


def _adamw(shards: dict[str, Tensor], config: AdamWConfig) -> torch.optim.AdamW:
    """AdamW over plain views of the shards: they share memory with the model, and plain tensors are quick to step."""
    matrices: list[Tensor] = [shard for shard in shards.values() if shard.dim() > 1]
    vectors: list[Tensor] = [shard for shard in shards.values() if shard.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        foreach=True,
        fused=False,
    )
