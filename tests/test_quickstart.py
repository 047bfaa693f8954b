"""The built-in recipes, whole: what the front page promises."""

import json
import os
import signal
from pathlib import Path

import pytest


def parameters(out: Path) -> bytes:
    return (out / "checkpoints" / "export" / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_the_quickstart_learns_and_its_samples_are_exact(runs, tmp_path: Path):
    out = tmp_path / "run"
    code, said = runs.run("quickstart", "--out", str(out))
    assert code == 0, said
    summary = json.loads((out / "summary.json").read_text())
    assert summary["reward_first"] <= 0.5
    assert summary["reward_last"] >= 0.9
    assert summary["tito_hard_mismatches"] == 0
    assert summary["samples_aborted"] == 0
    assert summary["logprob_abs_diff_max"] <= 1e-4
    assert runs.left_over(out) == {}


@pytest.mark.slow
def test_a_quickstart_killed_at_any_moment_ends_in_the_bits_of_an_uninterrupted_one(runs, tmp_path: Path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    short = ("--set", "run.steps=6")
    code, said = runs.run("quickstart", "--out", str(whole), *short)
    assert code == 0, said

    controller = runs.start("quickstart", "--out", str(killed), *short)
    runs.wait_for("three steps", lambda: len(runs.records(killed)) >= 3)
    os.kill(controller.pid, signal.SIGKILL)
    controller.wait()
    assert runs.left_over(killed) == {}
    code, said = runs.run("--resume", "--out", str(killed))
    assert code == 0, said

    assert runs.records(killed) == runs.records(whole)
    assert parameters(killed) == parameters(whole)


@pytest.mark.slow
def test_a_quickstart_with_two_engines_survives_the_death_of_one_and_trains_nothing_twice(runs, tmp_path: Path):
    out = tmp_path / "run"
    runs.start("quickstart", "--out", str(out), "--set", "run.steps=8", "--set", "engines.count=2")
    runs.wait_for("two steps", lambda: len(runs.records(out)) >= 2)
    os.kill(runs.processes(out)["engine-1"], signal.SIGKILL)
    assert runs.started[-1].wait(timeout=300) == 0, runs.output()
    assert [record["step"] for record in runs.records(out)] == list(range(8))
    rollouts = [
        json.loads(line)["rollout_id"]
        for file in sorted((out / "samples").iterdir())
        for line in file.read_text().splitlines()
    ]
    assert len(rollouts) == len(set(rollouts)) == 8 * 64
    assert runs.left_over(out) == {}
