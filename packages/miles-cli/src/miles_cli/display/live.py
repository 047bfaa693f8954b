"""A run on a terminal: progress bars and figures that stay in place, with a line per step above them."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from miles_cli.display.sparkline import sparkline
from miles_cli.tracking.console import rate, step_line

_BARS = ("rollout", "train")
_LABELS = {"rollout": "rollouts", "train": "training"}
_DOING = {"rollout": "rolling out", "train": "training", "push": "pushing weights", "save": "saving a checkpoint"}


@dataclass(slots=True)
class _Bar:
    """Progress of one phase. seconds: how long it took, once it is over."""

    total: int = 0
    done: int = 0
    tokens: int = 0
    begin: float = 0.0
    seconds: float | None = None
    tokens_per_s: float = 0.0


class LiveDisplay:
    """Owns the lower lines of the terminal from `start` to `close`."""

    def __init__(
        self,
        console: Console,
        *,
        title: str = "miles",
        steps: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console
        self._title = title
        self._steps = steps
        self._clock = clock
        self._begin = clock()
        self._bars = {name: _Bar() for name in _BARS}
        self._phase = ""
        self._last: dict[str, Any] = {}
        self._rewards: list[float] = []
        self._live: Live | None = None

    def start(self) -> Self:
        """Take the lower lines of the terminal."""
        self._live = Live(
            console=self._console,
            get_renderable=self.render,
            refresh_per_second=6,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()
        return self

    def phase(self, name: str, total: int) -> None:
        """Move on to a phase; its bar starts anew."""
        self._end_phase()
        if name == "rollout":
            self._bars["train"] = _Bar(tokens_per_s=self._bars["train"].tokens_per_s)
        if name in self._bars:
            self._bars[name] = _Bar(total=total, begin=self._clock(), tokens_per_s=self._bars[name].tokens_per_s)
        self._phase = name

    def advance(self, done: int, tokens: int) -> None:
        """Fill the bar of the current phase."""
        bar = self._bars.get(self._phase)
        if bar is not None:
            bar.done, bar.tokens = done, tokens
            bar.tokens_per_s = tokens / max(self._clock() - bar.begin, 1e-9)

    def step(self, metrics: Mapping[str, Any]) -> None:
        """Show the step's figures, and leave its line above."""
        self._end_phase()
        self._phase = ""
        self._last = dict(metrics)
        if isinstance(metrics.get("reward_mean"), int | float):
            self._rewards.append(float(metrics["reward_mean"]))
        times = metrics.get("time") or {}
        for name, bar in self._bars.items():
            bar.tokens_per_s = times.get(f"{name}_tokens_per_s") or bar.tokens_per_s
        self._print(Text(step_line(metrics), style="dim"))

    def note(self, text: str) -> None:
        """Leave a line above."""
        self._print(Text(text, style="yellow"))

    def close(self) -> None:
        """Draw the last state and give the terminal back."""
        if self._live is not None:
            self._end_phase()
            self._live.stop()
            self._live = None

    def render(self) -> RenderableType:
        """The lines as they are now."""
        rows = Table.grid(padding=(0, 2), expand=True)
        rows.add_column(no_wrap=True)
        rows.add_column(ratio=1)
        rows.add_column(justify="right", no_wrap=True)
        rows.add_column(justify="right", no_wrap=True, min_width=11)
        for name, bar in self._bars.items():
            rows.add_row(_LABELS[name], self._draw(name, bar), _count(bar), rate(bar.tokens_per_s))
        return Panel(Group(rows, self._reward(), self._figures()), title=self._heading(), title_align="left")

    def _end_phase(self) -> None:
        bar = self._bars.get(self._phase)
        if bar is not None and bar.seconds is None:
            bar.seconds = self._clock() - bar.begin
            bar.done = bar.total

    def _draw(self, name: str, bar: _Bar) -> ProgressBar:
        running = name == self._phase
        unknown = running and bar.done == 0 and name == "train"
        return ProgressBar(
            total=max(bar.total, 1),
            completed=bar.done,
            pulse=unknown,
            animation_time=self._clock(),
            complete_style="cyan",
            finished_style="green",
        )

    def _heading(self) -> Text:
        step = len(self._rewards) if not self._last else int(self._last["step"]) + 1
        of = f"/{self._steps}" if self._steps else ""
        minutes, seconds = divmod(int(self._clock() - self._begin), 60)
        version = self._last.get("weight_version", 0)
        doing = _DOING.get(self._phase, self._phase)
        text = Text.assemble((self._title, "bold"), f"  step {step}{of}  weights v{version}  {minutes}:{seconds:02d}")
        return text.append(f"  {doing}", style="italic") if doing else text

    def _reward(self) -> Text:
        text = Text("reward    ")
        if not self._rewards:
            return text.append("-")
        text.append(f"{self._rewards[-1]:.3f}  ", style="bold")
        return text.append(sparkline(self._rewards, width=max(self._console.width - 30, 10)), style="green")

    def _figures(self) -> Text:
        figures = (("loss", "loss", ".4f"), ("kl", "kl", ".2e"))
        mismatch = (("mismatch kl", "mismatch_kl", ".1e"), ("logprob diff", "logprob_abs_diff_max", ".1e"))
        text = Text()
        for label, key, form in (*figures, *mismatch):
            value = self._last.get(key)
            text.append(f"{label} ").append(f"{value:{form}}" if isinstance(value, int | float) else "-", style="bold")
            text.append("  ")
        text.rstrip()
        return text

    def _print(self, line: Text) -> None:
        if self._live is not None:
            self._console.print(line)


def _count(bar: _Bar) -> str:
    return f"{bar.done}/{bar.total}" if bar.total else ""
