"""Load a Hugging Face causal language model with the batch-invariant operators put in."""

from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AutoModelForCausalLM

from miles_core.errors import TrainError
from miles_megatron.models.activation import InvariantSiLU
from miles_megatron.models.attention import packed_attention
from miles_megatron.models.linear import PaddedLinear
from miles_megatron.models.norm import FusedRMSNorm

ATTENTION = "miles_packed"
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")


def load_causal_lm(
    folder: str | Path, *, dtype: str = "float32", device: str = "cpu", batch_invariant: bool = True
) -> nn.Module:
    """The model of a Hugging Face folder, on `device` in `dtype`, in eval mode, with Hugging Face's parameter names.

    It attends packed sequences only: call it through `packed_hidden` or `packed_forward`. batch_invariant: linear
    layers, norms and SiLU are replaced by forms whose rows do not depend on the batch. `save_pretrained` and
    `state_dict` stay Hugging Face's. TrainError when the folder or the architecture cannot be used.
    """
    if not (Path(folder) / "config.json").is_file():
        raise TrainError(f"expected a Hugging Face model folder with config.json, found none at {folder}.")
    if dtype not in DTYPES:
        raise TrainError(f"expected a dtype among {', '.join(DTYPES)}, found {dtype!r}.")
    AttentionInterface.register(ATTENTION, packed_attention)
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=DTYPES[dtype], attn_implementation=ATTENTION, local_files_only=True
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        why = " ".join(str(error).split())
        raise TrainError(f"the model in {folder} cannot be loaded: {why}") from error
    _refuse_unsupported(model)
    if batch_invariant:
        make_invariant(model)
    model.__class__ = _packed_class(type(model))
    return model.to(device).eval()


def make_invariant(model: nn.Module) -> None:
    """Put batch-invariant linear layers, RMS norms and SiLU in; parameters and their names stay the same."""
    for module in list(model.modules()):
        if type(module) is nn.Linear:
            module.__class__ = PaddedLinear
        elif _is_rms_norm(module):
            module.__class__ = FusedRMSNorm
        for name, child in module.named_children():
            if type(child).__name__ in ("SiLU", "SiLUActivation"):
                setattr(module, name, InvariantSiLU())


def _is_rms_norm(module: nn.Module) -> bool:
    """Norms of the T5 kind: a weight that multiplies (Gemma's adds 1 and names its epsilon otherwise)."""
    return type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon")


def _packed_class(architecture: type[nn.Module]) -> type[nn.Module]:
    """The architecture with a `forward` that can stop before the head. The name stays: `save_pretrained` writes it."""

    @wraps(architecture.forward)
    def forward(self: Any, *args: Any, hidden_only: bool = False, **kwargs: Any) -> Any:
        if hidden_only:
            return self.model(*args, **kwargs).last_hidden_state
        return architecture.forward(self, *args, **kwargs)

    return type(architecture.__name__, (architecture,), {"forward": forward, "__module__": architecture.__module__})


def _refuse_unsupported(model: nn.Module) -> None:
    config: Any = model.config
    reasons = []
    if not getattr(model, "_supports_attention_backend", False):
        reasons.append("its attention cannot be replaced")
    if not isinstance(getattr(model, "lm_head", None), nn.Linear) or not hasattr(model, "model"):
        reasons.append("it has no decoder `model` with a linear `lm_head`")
    if set(getattr(config, "layer_types", None) or ["full_attention"]) != {"full_attention"}:
        reasons.append("it has layers without full attention (sliding windows or others)")
    elif getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        reasons.append(f"it attends within a sliding window of {config.sliding_window}")
    if any(getattr(config, name, None) for name in ("attn_logit_softcapping", "final_logit_softcapping")):
        reasons.append("it caps its logits")
    if getattr(config, "attention_dropout", 0.0):
        reasons.append("it drops attention at random")
    if any(getattr(config, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts")):
        reasons.append("it is a mixture of experts")
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") in LENGTH_DEPENDENT_ROPE:
        reasons.append(f"its rotary embedding ({rope['rope_type']}) depends on the length of the batch")
    if reasons:
        raise TrainError(
            f"{type(model).__name__} cannot be trained exactly: {'; '.join(reasons)}. "
            "Use a decoder with full attention, such as Qwen3 or Llama."
        )
