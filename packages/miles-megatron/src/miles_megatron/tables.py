"""The built-in functions of the algorithm: short name -> `module:attribute`. One line a function; imports nothing."""

from collections.abc import Mapping

ADVANTAGES = {
    "grpo": "miles_megatron.advantages.grpo:grpo",
}
LOSSES = {
    "ppo": "miles_megatron.losses.ppo:ppo_loss",
    "sft": "miles_megatron.losses.sft:sft_loss",
}
REDUCTIONS = {
    "token_mean": "miles_megatron.reductions:token_mean",
    "sequence_mean": "miles_megatron.reductions:sequence_mean",
    "fixed_length": "miles_megatron.reductions:fixed_length",
}
CORRECTIONS = {
    "none": "miles_megatron.corrections.none:no_correction",
    "tis": "miles_megatron.corrections.tis:truncated_importance",
}
TABLES: Mapping[str, Mapping[str, str]] = {
    "advantage": ADVANTAGES,
    "loss": LOSSES,
    "reduction": REDUCTIONS,
    "correction": CORRECTIONS,
}
"""By the key of `[algorithm]` that names one."""
