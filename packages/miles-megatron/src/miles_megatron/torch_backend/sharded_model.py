"""A Hugging Face causal language model under FSDP2, scoring packed tokens in one forward call."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from miles_megatron.logprobs import TokenScores, chunked_scores
from miles_megatron.models import lm_head, packed_hidden
from miles_megatron.rows import PackedRows

PREFIX = "causal_lm."


class ScoringModel(nn.Module):
    """Decoder, head and log-probabilities as one module: the root of FSDP, so that its hooks surround all of it."""

    def __init__(self, causal_lm: nn.Module, *, chunk_rows: int) -> None:
        super().__init__()
        self.causal_lm = causal_lm
        self._chunk_rows = chunk_rows

    def forward(self, rows: PackedRows, temperature: float, entropy_grad: bool) -> TokenScores:
        """Scores of the trained tokens, `[trained]`."""
        hidden = packed_hidden(self.causal_lm, rows.ids, rows.lengths)
        return chunked_scores(
            hidden.index_select(0, rows.rows),
            rows.targets,
            head=lambda chunk: lm_head(self.causal_lm, chunk),
            temperature=temperature,
            chunk_rows=self._chunk_rows,
            entropy_grad=entropy_grad,
        )


def shard(model: ScoringModel, mesh: DeviceMesh, *, compute_dtype: torch.dtype | None) -> None:
    """Put FSDP2 on every decoder layer and on the root, in place. Gradients are summed over ranks, not averaged.

    Everything is resharded after its forward pass, so that a changed shard is never hidden by a gathered copy.
    """
    dtype = next(model.parameters()).dtype
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=dtype) if compute_dtype else None
    for layer in _decoder_layers(model.causal_lm):
        _shard_one(layer, mesh, policy)
    _shard_one(model, mesh, policy)


def _shard_one(module: nn.Module, mesh: DeviceMesh, policy: MixedPrecisionPolicy | None) -> None:
    fully_shard(module, mesh=mesh, reshard_after_forward=True, mp_policy=policy or MixedPrecisionPolicy())
    assert isinstance(module, FSDPModule), "fully_shard turns a module into an FSDPModule"  # narrows the type
    module.set_gradient_divide_factor(1.0)


def _decoder_layers(causal_lm: nn.Module) -> Iterator[nn.Module]:
    decoder = causal_lm.get_submodule("model")
    yield from decoder.get_submodule("layers").children()


def local_parameters(model: ScoringModel) -> dict[str, Tensor]:
    """This rank's shard of every parameter by its Hugging Face name; tied ones once. The tensors are views."""
    return {name.removeprefix(PREFIX): local(parameter) for name, parameter in model.named_parameters()}


def local(tensor: Tensor) -> Tensor:
    """The local shard of a distributed tensor, sharing its memory."""
    return tensor.detach().to_local() if isinstance(tensor, DTensor) else tensor.detach()


def global_shapes(model: ScoringModel) -> dict[str, list[int]]:
    """Shape of every whole parameter by its Hugging Face name."""
    return {name.removeprefix(PREFIX): list(parameter.shape) for name, parameter in model.named_parameters()}


def full_tensors(model: ScoringModel) -> Iterator[tuple[str, Tensor]]:
    """Every parameter in full by its Hugging Face name, tied ones once. Collective: every rank runs it to its end."""
    for name, parameter in model.named_parameters():
        value = parameter.detach()
        yield name.removeprefix(PREFIX), value.full_tensor() if isinstance(value, DTensor) else value
