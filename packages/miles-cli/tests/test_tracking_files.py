import io
import json
import math

import pytest

from miles_cli.tracking.console import ConsoleTracker, rate, step_line
from miles_cli.tracking.jsonl import JsonlTracker, read_metrics
from miles_core.errors import DataError


def write(path, steps, **options):
    tracker = JsonlTracker(path, **options)
    for step in steps:
        tracker.log({"weight_version": step + 1, "loss": step / 4}, step)
    tracker.finish()


def test_a_line_is_on_disk_when_log_returns(tmp_path):
    tracker = JsonlTracker(tmp_path / "metrics.jsonl")
    tracker.log({"loss": 0.5, "time": {"step_s": 1.0}}, 0)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 0, "loss": 0.5, "time": {"step_s": 1.0}}\n'
    tracker.finish()
    tracker.finish()
    with pytest.raises(ValueError, match="closed"):
        tracker.log({}, 1)


def test_resuming_drops_the_lines_of_the_steps_that_run_again(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, range(5))
    write(path, [3, 4, 5], resume_step=3)
    assert [line["step"] for line in read_metrics(path)] == [0, 1, 2, 3, 4, 5]


def test_a_resumed_file_equals_an_uninterrupted_one_byte_for_byte(tmp_path):
    write(tmp_path / "whole.jsonl", range(6))
    write(tmp_path / "parts.jsonl", range(4))
    write(tmp_path / "parts.jsonl", range(2, 6), resume_step=2)
    assert (tmp_path / "parts.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_a_line_cut_by_a_kill_is_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, range(2))
    with path.open("a") as file:
        file.write('{"step": 2, "lo')
    assert [line["step"] for line in read_metrics(path)] == [0, 1]
    write(path, [2], resume_step=2)
    assert [line["step"] for line in read_metrics(path)] == [0, 1, 2]


def test_without_resume_the_file_is_new(tmp_path):
    write(tmp_path / "m.jsonl", range(3))
    write(tmp_path / "m.jsonl", [0])
    assert [line["step"] for line in read_metrics(tmp_path / "m.jsonl")] == [0]


def test_numbers_that_json_lacks_become_null(tmp_path):
    tracker = JsonlTracker(tmp_path / "m.jsonl")
    tracker.log({"loss": math.nan, "time": {"s": math.inf}}, 0)
    tracker.finish()
    assert read_metrics(tmp_path / "m.jsonl") == [{"step": 0, "loss": None, "time": {"s": None}}]


def test_floats_survive_exactly(tmp_path):
    tracker = JsonlTracker(tmp_path / "m.jsonl")
    tracker.log({"loss": 0.1 + 0.2}, 0)
    tracker.finish()
    assert read_metrics(tmp_path / "m.jsonl")[0]["loss"] == 0.1 + 0.2


@pytest.mark.parametrize("line", ["nonsense", "[1]", '{"loss": 1}', '{"step": "1"}'])
def test_a_broken_line_in_the_middle_is_named(tmp_path, line):
    path = tmp_path / "m.jsonl"
    path.write_text(f'{{"step": 0}}\n{line}\n{{"step": 2}}\n')
    with pytest.raises(DataError, match=r"m\.jsonl, line 2: expected an? (JSON )?object"):
        read_metrics(path)


def test_no_file_has_no_lines(tmp_path):
    assert read_metrics(tmp_path / "absent.jsonl") == []


def test_the_console_line_of_a_step():
    stream = io.StringIO()
    metrics = {
        "weight_version": 4,
        "reward_mean": 0.8125,
        "loss": -0.01234,
        "kl": 0.00012,
        "logprob_abs_diff_max": 2.1e-6,
        "samples_aborted": 2,
        "time": {"rollout_tokens_per_s": 812.4, "train_tokens_per_s": 3210.0, "step_s": 3.14},
    }
    ConsoleTracker(stream).log(metrics, 3)
    assert stream.getvalue() == (
        "step 3  v4  reward 0.812  loss -0.0123  kl 1.20e-04  mismatch 2.1e-06"
        "  rollout 812 tok/s  train 3.2k tok/s  3.1 s  2 aborted\n"
    )


def test_figures_that_a_step_lacks_are_left_out():
    assert step_line({"step": 1, "loss": None, "kl": math.nan}) == "step 1"


def test_rates():
    assert [rate(0), rate(999.4), rate(1000), rate(12_345)] == ["0 tok/s", "999 tok/s", "1.0k tok/s", "12.3k tok/s"]


def test_a_metrics_line_is_one_json_object(tmp_path):
    tracker = JsonlTracker(tmp_path / "m.jsonl")
    tracker.log({"note": "two\nlines"}, 0)
    tracker.finish()
    (line,) = (tmp_path / "m.jsonl").read_text().splitlines()
    assert json.loads(line)["note"] == "two\nlines"
