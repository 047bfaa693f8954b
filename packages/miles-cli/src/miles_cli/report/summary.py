"""The figures of a whole run."""

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from miles_cli.report.timeline import place_steps
from miles_cli.tracking.jsonl import finite, read_metrics

SUMMARY = "summary.json"
_FIRST, _LAST = 2, 5


def summarise(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Figures over the lines of a metrics file; None where no line has what a figure needs.

    steps: lines. reward_first: mean of `reward_mean` over the first two steps; reward_last: over the last five.
    wall_s: from the start of the command to the end of the last step (of a resumed run: of all its parts together).
    time_to_first_step_s: from the start of the command to the end of the first training step. rollout_tokens_per_s,
    train_tokens_per_s: all tokens by all seconds of that phase. weight_version: after the last step. samples_trained,
    samples_aborted, tito_hard_mismatches: sums. logprob_abs_diff_max: the largest.
    """
    rewards = _values(metrics, "reward_mean")
    placed = place_steps(metrics)
    diffs = _values(metrics, "logprob_abs_diff_max")
    return {
        "steps": len(metrics),
        "reward_first": _mean(rewards[:_FIRST]),
        "reward_last": _mean(rewards[-_LAST:]),
        "wall_s": placed[-1].end_s if placed else None,
        "time_to_first_step_s": _first_trained(metrics),
        "rollout_tokens_per_s": _speed(metrics, "rollout_tokens", "rollout_s"),
        "train_tokens_per_s": _speed(metrics, "train_tokens", "train_s"),
        "weight_version": metrics[-1].get("weight_version") if metrics else None,
        "samples_trained": _count(metrics, "samples_trained"),
        "samples_aborted": _count(metrics, "samples_aborted"),
        "tito_hard_mismatches": _count(metrics, "tito_hard_mismatches"),
        "logprob_abs_diff_max": max(diffs) if diffs else None,
    }


def write_summary(run_dir: Path, **measured: Any) -> Path:
    """Write `summary.json` from `metrics.jsonl`; `measured` replaces or adds figures, such as a `wall_s` to the end."""
    summary = summarise(read_metrics(run_dir / "metrics.jsonl")) | measured
    path = run_dir / SUMMARY
    work = path.with_name(f".{path.name}.{os.getpid()}")
    work.write_text(json.dumps(finite(summary), indent=2, allow_nan=False) + "\n", encoding="utf-8")
    work.replace(path)
    return path


def _values(metrics: Iterable[Mapping[str, Any]], key: str) -> list[float]:
    values = (line.get(key) for line in metrics)
    return [float(value) for value in values if isinstance(value, int | float) and math.isfinite(value)]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _count(metrics: Iterable[Mapping[str, Any]], key: str) -> int:
    return int(sum(_values(metrics, key)))


def _speed(metrics: Iterable[Mapping[str, Any]], tokens_key: str, seconds_key: str) -> float | None:
    tokens = seconds = 0.0
    for line in metrics:
        spent = (line.get("time") or {}).get(seconds_key)
        if isinstance(spent, int | float) and isinstance(line.get(tokens_key), int | float):
            tokens += line[tokens_key]
            seconds += spent
    return tokens / seconds if seconds else None


def _first_trained(metrics: Iterable[Mapping[str, Any]]) -> float | None:
    for line in metrics:
        time = line.get("time") or {}
        if all(isinstance(time.get(key), int | float) for key in ("started_s", "rollout_s", "train_s")):
            return float(time["started_s"] + time["rollout_s"] + time["train_s"])
    return None
