"""The run's timeline as inline SVG: a row for each phase, a bar for each step."""

from collections.abc import Sequence

from miles_cli.report.charts import LEFT, RIGHT, Scale, number, ticks
from miles_cli.report.timeline import PHASES, PlacedStep

WIDTH, ROW, GAP, FOOT = 960, 26, 8, 24


def gantt(steps: Sequence[PlacedStep]) -> str:
    """An SVG over seconds since the start of the command; each bar says its step and seconds."""
    height = len(PHASES) * (ROW + GAP) + FOOT
    x = Scale(0.0, max(step.end_s for step in steps) or 1.0, LEFT, WIDTH - RIGHT)
    bars = [_row_label(row, name) for row, name in enumerate(PHASES)]
    for value in ticks(x.low, x.high, most=10):
        at = f"{x(value):.1f}"
        bars.append(f'<line class="grid" x1="{at}" x2="{at}" y1="0" y2="{height - FOOT}"/>')
        bars.append(f'<text class="tick" x="{at}" y="{height - 8}" text-anchor="middle">{number(value)} s</text>')
    for step in steps:
        for row, name in enumerate(PHASES):
            if name in step.phases:
                bars.append(_bar(step.step, name, row, step.phases[name], x))
    label = "Seconds of rollout, training and weight push by step"
    return f'<svg class="gantt" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">{"".join(bars)}</svg>'


def _row_label(row: int, name: str) -> str:
    middle = row * (ROW + GAP) + ROW / 2
    return f'<text class="tick" x="{LEFT - 6}" y="{middle}" dy="0.32em" text-anchor="end">{name}</text>'


def _bar(step: int, name: str, row: int, span: tuple[float, float], x: Scale) -> str:
    begin, end = span
    width = max(x(end) - x(begin) - 0.5, 0.5)
    tip = f"step {step}: {name} {end - begin:.2f} s, from {begin:.1f} s"
    return (
        f'<rect class="bar {name}" x="{x(begin):.2f}" y="{row * (ROW + GAP)}" width="{width:.2f}" height="{ROW}" '
        f'rx="1.5" data-tip="{tip}"/>'
    )
