"""Line charts as inline SVG."""

import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from miles_cli.report.series import Chart, Series

WIDTH, HEIGHT = 460, 190
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 10, 24

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps a range of values to a range of pixels, linearly or by the logarithm."""

    low: float
    high: float
    begin: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        low, high, at = self.low, self.high, value
        if self.logarithmic:
            low, high, at = math.log10(low), math.log10(high), math.log10(value)
        share = (at - low) / (high - low) if high > low else 0.5
        return self.begin + share * (self.end - self.begin)


def line_chart(chart: Chart, metrics: Sequence[Mapping[str, Any]]) -> str:
    """A card with the chart over steps; empty when no line has any of its figures, or all are 0 and that means off."""
    lines = [(series, _points(series.key, metrics, chart)) for series in chart.series]
    lines = [(series, points) for series, points in lines if points]
    if not lines:
        return line_chart(replace(chart, logarithmic=False), metrics) if chart.logarithmic else ""
    bands = {series.key: _band(series, metrics) for series, _ in lines if series.spread}
    every = [point for _, points in lines for point in points]
    if chart.zero_is_off and not any(value for _, value in every):
        return ""
    edges = [value for band in bands.values() for _, low, high in band for value in (low, high)]
    x = Scale(min(p[0] for p in every), max(p[0] for p in every), LEFT, WIDTH - RIGHT)
    y = _value_scale([p[1] for p in every] + edges, logarithmic=chart.logarithmic)
    body = [_axes(x, y)]
    body += [_draw_band(band, x, y, number) for number, band in enumerate(bands.values()) if band]
    body += [_draw_line(points, x, y, number) for number, (_, points) in enumerate(lines)]
    return _card(chart.title, lines, "".join(body), x)


def ticks(low: float, high: float, *, logarithmic: bool = False, most: int = 5) -> list[float]:
    """Round numbers between two values: 1, 2 or 5 times a power of ten, or powers of ten; at most `most`."""
    if high <= low:
        return [low]
    if logarithmic:
        first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
        stride = max(1, -(-(last - first + 1) // most))
        return [10.0**power for power in range(first, last + 1, stride)]
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * (1 - 1e-9))
    return [n * step for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """A short form: `0`, `12`, `0.25`, `1.5k`, `2e-06`."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e6 or size < 1e-3:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    if size >= 1e4:
        return f"{value / 1000:.4g}k"
    return f"{value:.4g}"


def _points(key: str, metrics: Sequence[Mapping[str, Any]], chart: Chart) -> list[Point]:
    points = []
    for line in metrics:
        value = line.get(key)
        if isinstance(value, int | float) and math.isfinite(value) and (value > 0 or not chart.logarithmic):
            points.append((float(line["step"]), float(value)))
    return points


def _band(series: Series, metrics: Sequence[Mapping[str, Any]]) -> list[tuple[float, float, float]]:
    band = []
    for line in metrics:
        mean, spread = line.get(series.key), line.get(series.spread or "")
        if isinstance(mean, int | float) and isinstance(spread, int | float):
            band.append((float(line["step"]), mean - spread, mean + spread))
    return band


def _value_scale(values: Sequence[float], *, logarithmic: bool) -> Scale:
    low, high = min(values), max(values)
    if logarithmic:
        low, high = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high) + 1e-9)
    else:
        margin = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
        low, high = low - margin, high + margin
    return Scale(low, high, HEIGHT - BOTTOM, TOP, logarithmic)


def _axes(x: Scale, y: Scale) -> str:
    parts = []
    for value in ticks(y.low, y.high, logarithmic=y.logarithmic):
        at = f"{y(value):.1f}"
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{at}" dy="0.32em" text-anchor="end">{number(value)}</text>')
    for value in ticks(x.low, x.high, most=6):
        if value == int(value):
            parts.append(
                f'<text class="tick" x="{x(value):.1f}" y="{HEIGHT - 8}" text-anchor="middle">{int(value)}</text>'
            )
    return "".join(parts)


def _draw_band(band: Sequence[tuple[float, float, float]], x: Scale, y: Scale, number: int) -> str:
    upper = [f"{x(step):.1f},{y(high):.1f}" for step, _, high in band]
    lower = [f"{x(step):.1f},{y(low):.1f}" for step, low, _ in reversed(band)]
    return f'<polygon class="band c{number}" points="{" ".join(upper + lower)}"/>'


def _draw_line(points: Sequence[Point], x: Scale, y: Scale, number: int) -> str:
    if len(points) == 1:
        return f'<circle class="dot c{number}" cx="{x(points[0][0]):.1f}" cy="{y(points[0][1]):.1f}" r="3"/>'
    path = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in points)
    return f'<polyline class="line c{number}" points="{path}"/>'


def _card(title: str, lines: Sequence[tuple[Series, list[Point]]], body: str, x: Scale) -> str:
    keys = "".join(
        f'<span class="key c{n}">{html.escape(series.label)} <b>{number(points[-1][1])}</b></span>'
        for n, (series, points) in enumerate(lines)
    )
    data = {
        "x": [x(step) for step in (x.low, x.high)],
        "steps": [x.low, x.high],
        "series": [{"label": series.label, "points": points} for series, points in lines],
    }
    attribute = html.escape(json.dumps(data), quote=True)
    return (
        f'<figure class="card"><figcaption><h3>{html.escape(title)}</h3><span class="keys">{keys}</span></figcaption>'
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(title)} by step" '
        f'data-chart="{attribute}">{body}<line class="cursor" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/></svg></figure>'
    )
