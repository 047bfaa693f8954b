"""A step's figures as one plain line."""

import math
from collections.abc import Mapping
from typing import Any, TextIO

_FIGURES = (
    ("reward", "reward_mean", ".3f"),
    ("loss", "loss", ".4f"),
    ("kl", "kl", ".2e"),
    ("mismatch", "logprob_abs_diff_max", ".1e"),
)
_RATES = (("rollout", "rollout_tokens_per_s"), ("train", "train_tokens_per_s"))


class ConsoleTracker:
    """Writes a line per step to a text stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def start(self, config: Mapping[str, Any]) -> None:
        """Nothing to say yet."""

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Write the step's line."""
        self._stream.write(step_line({"step": step, **metrics}) + "\n")
        self._stream.flush()

    def finish(self) -> None:
        """Nothing is held."""


def step_line(metrics: Mapping[str, Any]) -> str:
    """For example `step 3  v4  reward 0.812  loss 0.0123  kl 1.20e-04  mismatch 2.1e-06  rollout 812 tok/s  3.1 s`.

    Figures that a step does not have are left out.
    """
    parts = [f"step {metrics['step']}"]
    if "weight_version" in metrics:
        parts.append(f"v{metrics['weight_version']}")
    parts += [f"{label} {metrics[key]:{form}}" for label, key, form in _FIGURES if _is_number(metrics.get(key))]
    time = metrics.get("time") or {}
    parts += [f"{label} {rate(time[key])}" for label, key in _RATES if _is_number(time.get(key)) and time[key] > 0]
    if _is_number(time.get("step_s")):
        parts.append(f"{time['step_s']:.1f} s")
    parts += [f"{metrics[key]:.0f} {label}" for key, label in _TROUBLE if metrics.get(key)]
    return "  ".join(parts)


_TROUBLE = (("samples_aborted", "aborted"), ("tito_hard_mismatches", "hard mismatches"))


def rate(tokens_per_s: float) -> str:
    """`812 tok/s`, `3.2k tok/s`."""
    if tokens_per_s >= 1000:
        return f"{tokens_per_s / 1000:.1f}k tok/s"
    return f"{tokens_per_s:.0f} tok/s"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
