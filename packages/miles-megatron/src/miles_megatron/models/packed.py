"""Forward passes over packed sequences: `[tokens]` in, no padding token between sequences."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from miles_megatron.models.attention import PackedAttend
from miles_megatron.models.layout import plan_layout
from miles_megatron.models.linear import ROW_MULTIPLE


def packed_hidden(model: nn.Module, ids: Tensor, lengths: Sequence[int]) -> Tensor:
    """Last hidden states `[tokens, hidden]` of sequences laid end to end, with autograd.

    ids `[tokens]` int64 on the model's device; lengths: tokens of each sequence, all above 0, in order, summing to
    `tokens`. A token sees its own sequence up to itself; positions start at 0 in each sequence. A row's bits do not
    depend on the other sequences. It runs the whole model's `forward`, so FSDP's hooks fire; under FSDP the head's
    weight stays gathered after it, and `lm_head` may follow.
    """
    if sum(lengths) != ids.shape[0] or min(lengths, default=0) < 1:
        raise ValueError(f"expected lengths above 0 that sum to {ids.shape[0]}, found {list(lengths)[:8]}.")
    config = model.config
    group_size = config.num_attention_heads // config.num_key_value_heads
    layout = plan_layout(lengths, group_size=group_size, row_multiple=ROW_MULTIPLE, device=ids.device)
    padded = functional.pad(ids, (0, layout.num_tokens - ids.shape[0]))
    hidden = model(
        input_ids=padded[None],
        position_ids=layout.positions[None],
        use_cache=False,
        attend=PackedAttend(layout),
        hidden_only=True,
    )
    return hidden[0, : ids.shape[0]]


def lm_head(model: nn.Module, hidden: Tensor) -> Tensor:
    """Logits `[tokens, vocab]` of hidden states `[tokens, hidden]`; a row's bits do not depend on the other rows."""
    return model.lm_head(hidden)


def packed_forward(model: nn.Module, ids: Tensor, lengths: Sequence[int]) -> Tensor:
    """Logits `[tokens, vocab]` of packed sequences: `lm_head` of `packed_hidden`."""
    return lm_head(model, packed_hidden(model, ids, lengths))
