"""The page that a run leaves: one file without a reference to anything outside it."""

import html
import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from miles_cli.report.charts import line_chart
from miles_cli.report.gantt import gantt
from miles_cli.report.samples_file import read_samples
from miles_cli.report.series import CHARTS
from miles_cli.report.summary import SUMMARY, summarise
from miles_cli.report.timeline import place_steps
from miles_cli.report.trajectory import LEGEND, trajectory
from miles_cli.tracking.jsonl import read_metrics

REPORT = "report.html"
_SHOWN_STEPS = 3
_TILES = (
    ("reward_first", "reward, first two steps", "{:.3f}"),
    ("reward_last", "reward, last five steps", "{:.3f}"),
    ("steps", "steps", "{:d}"),
    ("weight_version", "weight version", "{:d}"),
    ("wall_s", "wall time", "{:.1f} s"),
    ("time_to_first_step_s", "to the first step", "{:.1f} s"),
    ("rollout_tokens_per_s", "rollout tokens/s", "{:,.0f}"),
    ("train_tokens_per_s", "train tokens/s", "{:,.0f}"),
    ("samples_trained", "samples trained", "{:,d}"),
    ("samples_aborted", "samples aborted", "{:,d}"),
    ("tito_hard_mismatches", "hard token mismatches", "{:,d}"),
    ("logprob_abs_diff_max", "largest logprob difference", "{:.1e}"),
)


def write_report(run_dir: Path) -> Path:
    """Write `report.html` from the run's `metrics.jsonl`, and `summary.json`, `config.toml`, `samples/` where present.

    Works at any moment of a run. DataError when a file cannot be read as what it should be.
    """
    metrics = read_metrics(run_dir / "metrics.jsonl")
    sections = (
        _header(run_dir, metrics),
        _tiles(_summary(run_dir, metrics)),
        _charts(metrics),
        _timeline(metrics),
        _trajectories(run_dir / "samples"),
        _config(run_dir / "config.toml"),
    )
    page = _asset("page.html")
    for mark, text in (
        ("title", html.escape(run_dir.resolve().name)),
        ("style", _asset("page.css")),
        ("script", _asset("page.js")),
        ("body", "\n".join(section for section in sections if section)),
    ):
        page = page.replace(f"<!-- {mark} -->", text, 1)
    path = run_dir / REPORT
    work = path.with_name(f".{path.name}.{os.getpid()}")
    work.write_text(page, encoding="utf-8")
    work.replace(path)
    return path


def _summary(run_dir: Path, metrics: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    path = run_dir / SUMMARY
    written = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {**summarise(metrics), **written}


def _header(run_dir: Path, metrics: Sequence[Mapping[str, Any]]) -> str:
    count = "1 step" if len(metrics) == 1 else f"{len(metrics)} steps"
    state = count if metrics else "no step is done yet"
    return f"<header><h1>{html.escape(run_dir.resolve().name)}</h1><p>A run of Miles: {state}.</p></header>"


def _tiles(summary: Mapping[str, Any]) -> str:
    tiles = []
    for key, label, form in _TILES:
        value = summary.get(key)
        text = _figure(value, form)
        alarm = " alarm" if key in ("samples_aborted", "tito_hard_mismatches") and value else ""
        tiles.append(f'<div class="tile{alarm}"><b>{text}</b><span>{label}</span></div>')
    return f'<section class="tiles">{"".join(tiles)}</section>'


def _figure(value: object, form: str) -> str:
    if not isinstance(value, int | float):
        return "–"
    return "0" if value == 0 and "e" in form else form.format(value)


def _charts(metrics: Sequence[Mapping[str, Any]]) -> str:
    drawn = [line_chart(chart, metrics) for chart in CHARTS]
    shown = "".join(svg for svg in drawn if svg)
    return f'<section class="charts">{shown}</section>' if shown else ""


def _timeline(metrics: Sequence[Mapping[str, Any]]) -> str:
    placed = place_steps(metrics)
    return f'<section><h2>Timeline</h2><div class="card">{gantt(placed)}</div></section>' if placed else ""


def _trajectories(folder: Path) -> str:
    paths = sorted(folder.glob("step-*.jsonl")) if folder.is_dir() else []
    chosen = [paths[i] for i in sorted({0, len(paths) // 2, len(paths) - 1})][:_SHOWN_STEPS] if paths else []
    shown = [trajectory(sample, opened=path is chosen[-1]) for path in chosen for sample in _best_and_worst(path)]
    if not shown:
        return ""
    return f"<section><h2>Trajectories</h2>{LEGEND}{''.join(shown)}</section>"


def _best_and_worst(path: Path) -> list[dict[str, Any]]:
    judged = [sample for sample in read_samples(path) if isinstance(sample.get("reward"), int | float)]
    if not judged:
        return []
    best = max(judged, key=lambda sample: sample["reward"])
    worst = min(judged, key=lambda sample: sample["reward"])
    return [best] if worst is best else [best, worst]


def _config(path: Path) -> str:
    if not path.exists():
        return ""
    text = path.read_text(encoding="utf-8")
    try:
        kind = tomllib.loads(text).get("kind", "")
    except tomllib.TOMLDecodeError:
        kind = ""
    label = f"Configuration ({html.escape(str(kind))})" if kind else "Configuration"
    return f"<section><details><summary>{label}</summary><pre>{html.escape(text)}</pre></details></section>"


def _asset(name: str) -> str:
    return files("miles_cli.report").joinpath(name).read_text(encoding="utf-8")
