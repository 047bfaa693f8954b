"""When each phase of each step took place."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

PHASES = ("rollout", "train", "push")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedStep:
    """One step on the clock of the whole run, in seconds. phases: name -> (begin, end) of those that took place."""

    step: int
    begin_s: float
    end_s: float
    phases: Mapping[str, tuple[float, float]]


def place_steps(metrics: Iterable[Mapping[str, Any]]) -> list[PlacedStep]:
    """The lines of a metrics file that have times, in order.

    Phases follow each other from the step's start. A step that starts before the end of the one before it belongs to
    a resumed command, whose clock began anew: its part follows the earlier one without a gap.
    """
    placed: list[PlacedStep] = []
    origin = 0.0
    for line in metrics:
        time = line.get("time") or {}
        if not isinstance(time.get("started_s"), int | float):
            continue
        end = placed[-1].end_s if placed else 0.0
        if origin + time["started_s"] < end - 1e-3:
            origin = end
        placed.append(_place(line["step"], time, origin + time["started_s"]))
    return placed


def _place(step: int, time: Mapping[str, Any], begin: float) -> PlacedStep:
    phases = {}
    at = begin
    for name in PHASES:
        seconds = time.get(f"{name}_s")
        if isinstance(seconds, int | float) and seconds > 0:
            phases[name] = (at, at + seconds)
            at += seconds
    whole = time.get("step_s")
    end = begin + whole if isinstance(whole, int | float) else at
    return PlacedStep(step=step, begin_s=begin, end_s=max(end, at), phases=phases)
