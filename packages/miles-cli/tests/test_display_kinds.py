import io
import json
import os
import pty
import subprocess
import sys

import pytest
from rich.console import Console

from miles_cli.display import choose
from miles_cli.display.json_lines import JsonLinesDisplay
from miles_cli.display.live import LiveDisplay
from miles_cli.display.plain import PlainDisplay
from miles_cli.display.sparkline import sparkline

METRICS = {
    "step": 4,
    "weight_version": 5,
    "reward_mean": 0.75,
    "loss": 0.0123,
    "kl": 0.0004,
    "mismatch_kl": 1e-9,
    "logprob_abs_diff_max": 3e-6,
    "time": {"rollout_tokens_per_s": 1500.0, "train_tokens_per_s": 4200.0, "step_s": 2.0},
}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def text_of(display, width=80):
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    console.print(display.render())
    return console.file.getvalue()


def live(now, width=80, **options):
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    return LiveDisplay(console, clock=lambda: now[0], **options)


def test_the_display_fits_the_stream(monkeypatch):
    monkeypatch.setitem(os.environ, "TERM", "xterm")
    assert isinstance(choose(io.StringIO(), False), PlainDisplay)
    assert isinstance(choose(io.StringIO(), True), JsonLinesDisplay)
    assert isinstance(choose(Terminal(), True), JsonLinesDisplay)
    display = choose(Terminal(), False)
    assert isinstance(display, LiveDisplay)
    display.close()
    monkeypatch.setitem(os.environ, "TERM", "dumb")
    assert isinstance(choose(Terminal(), False), PlainDisplay)


def test_json_lines_are_events():
    stream = io.StringIO()
    display = choose(stream, True)
    display.phase("rollout", 8)
    display.advance(3, 100)
    display.step(METRICS | {"loss": float("nan")})
    display.note("an engine was lost")
    display.close()
    display.note("unheard")
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert events == [
        {"event": "phase", "name": "rollout", "total": 8},
        {"event": "step", **METRICS, "loss": None},
        {"event": "note", "text": "an engine was lost"},
    ]


def test_plain_lines_hold_no_control_characters():
    stream = io.StringIO()
    display = choose(stream, False)
    display.phase("starting engines", 2)
    display.phase("rollout", 8)
    display.advance(8, 100)
    display.step(METRICS)
    display.close()
    display.step(METRICS)
    assert stream.getvalue() == (
        "starting engines ...\n"
        "step 4  v5  reward 0.750  loss 0.0123  kl 4.00e-04  mismatch 3.0e-06"
        "  rollout 1.5k tok/s  train 4.2k tok/s  2.0 s\n"
    )


def test_the_live_rollout_bar_counts_and_measures_tokens_per_second():
    now = [100.0]
    display = live(now, steps=60)
    now[0] = 130.0
    display.phase("rollout", 64)
    now[0] = 132.0
    display.advance(16, 1000)
    text = text_of(display)
    assert "rollouts" in text
    assert "16/64" in text
    assert "500 tok/s" in text
    assert "step 0/60  weights v0  0:32" in text
    assert "rolling out" in text
    display.advance(64, 4000)
    assert abs(_filled(text, "16/64") - _filled(text_of(display), "64/64") / 4) <= 1


def _filled(text, count):
    (row,) = (line for line in text.splitlines() if count in line)
    return row.count("━") + row.count("╸")


def test_the_live_display_shows_the_last_step_and_the_course_of_the_reward():
    display = live([0.0], steps=60)
    for step, reward in enumerate([0.0, 0.5, 1.0]):
        display.step(METRICS | {"step": step, "weight_version": step + 1, "reward_mean": reward})
    text = text_of(display)
    assert "step 3/60  weights v3" in text
    assert "1.000  ▁▅█" in text
    assert "loss 0.0123  kl 4.00e-04  mismatch kl 1.0e-09  logprob diff 3.0e-06" in text
    assert "1.5k tok/s" in text
    assert "4.2k tok/s" in text


def test_a_finished_phase_is_full_and_the_next_rollout_empties_the_training_bar():
    display = live([0.0])
    display.phase("rollout", 8)
    display.advance(7, 10)
    display.phase("train", 8)
    assert "8/8" in text_of(display)
    display.phase("push", 0)
    assert text_of(display).count("8/8") == 2
    assert "pushing weights" in text_of(display)
    display.phase("rollout", 8)
    assert "0/8" in text_of(display)
    assert "8/8" not in text_of(display)


@pytest.mark.parametrize("width", [60, 80, 160])
def test_no_line_is_wider_than_the_terminal(width):
    display = live([0.0], width=width)
    for step in range(200):
        display.step(METRICS | {"step": step, "reward_mean": step / 200})
    assert max(len(line) for line in text_of(display, width).splitlines()) == width


def test_steps_and_notes_stay_above_the_live_lines():
    display = live([0.0], width=100).start()
    display.phase("rollout", 8)
    display.step(METRICS)
    display.note("engine 1 was lost")
    display.close()
    display.close()
    display.note("unheard")
    written = display._console.file.getvalue()
    assert "step 4  v5  reward 0.750" in written
    assert "engine 1 was lost" in written
    assert "unheard" not in written
    assert written.rindex("engine 1 was lost") < written.rindex("rollouts")
    assert "\x1b[?25h" in written, "the cursor is shown again"


def test_a_real_terminal_gets_the_live_display():
    code = (
        "import sys; from miles_cli.display import choose\n"
        "d = choose(sys.stdout, False, title='run'); d.phase('rollout', 4); d.advance(2, 10); d.close()"
    )
    parent, child = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80"}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=child, stderr=child, env=environment)
    os.close(child)
    written = b""
    while True:
        try:
            chunk = os.read(parent, 65536)
        except OSError:  # Linux's end of a terminal
            break
        if not chunk:
            break
        written += chunk
    os.close(parent)
    assert process.wait(timeout=60) == 0
    assert "rollouts" in written.decode()
    assert b"\x1b[" in written


def test_plain_and_json_displays_load_no_rich():
    code = (
        "import io, sys; from miles_cli.display import choose\n"
        "choose(io.StringIO(), False); choose(io.StringIO(), True)\n"
        "sys.exit(any(name in sys.modules for name in ('rich', 'torch', 'ray')))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("values", "width", "drawn"),
    [
        ([], 10, ""),
        ([0.5], 10, "▁"),
        ([1, 1, 1], 10, "▁▁▁"),
        ([0, 7], 10, "▁█"),
        ([0, 1, 2, 3, 4, 5, 6, 7], 8, "▁▂▃▄▅▆▇█"),
        ([0, 0, 7, 7], 2, "▁█"),
        ([1, 2], 0, ""),
    ],
)
def test_sparklines(values, width, drawn):
    assert sparkline(values, width=width) == drawn
