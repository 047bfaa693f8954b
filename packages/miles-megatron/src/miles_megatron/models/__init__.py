"""Model code that the trainer and the local engine share, so that both compute the same bits."""

from miles_megatron.models.distribution import log_distribution
from miles_megatron.models.load import load_causal_lm
from miles_megatron.models.packed import lm_head, packed_forward, packed_hidden

__all__ = ["lm_head", "load_causal_lm", "log_distribution", "packed_forward", "packed_hidden"]
