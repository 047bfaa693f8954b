"""Whole runs of a random tiny model through the command: equal bits, kills, signals, failures."""

import json
import os
import signal
from pathlib import Path

import pytest

RAISES = """
async def run(*, base_url, prompt, request_kwargs, metadata):
    raise KeyError("no such thing")
"""
NEVER_CALLS = """
async def run(*, base_url, prompt, request_kwargs, metadata):
    return {"reward": 1.0}
"""
SLEEPS = """
import asyncio


async def run(*, base_url, prompt, request_kwargs, metadata):
    await asyncio.sleep(3600)
"""
BLOCKS = """
import time


async def run(*, base_url, prompt, request_kwargs, metadata):
    time.sleep(3600)
"""


def reasons(out: Path) -> set[str]:
    """Why samples of a run were aborted."""
    files = [map(json.loads, file.read_text().splitlines()) for file in (out / "samples").iterdir()]
    return {str(sample["error"]) for samples in files for sample in samples if sample.get("error")}


def test_a_killed_and_resumed_run_equals_an_uninterrupted_one_bit_for_bit(runs, tmp_path: Path):
    recipe = str(runs.write_recipe(steps=4))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    code, said = runs.run(recipe, "--out", str(whole))
    assert code == 0, said
    assert [record["weight_version"] for record in runs.records(whole)] == [1, 2, 3, 4]
    assert all(record["logprob_abs_diff_max"] <= 1e-4 for record in runs.records(whole))
    assert all(record["samples_aborted"] == 0 for record in runs.records(whole))

    controller = runs.start(recipe, "--out", str(killed), "--set", "rollout.max_concurrency=1")
    runs.wait_for("two steps", lambda: len(runs.records(killed)) >= 2)
    os.kill(controller.pid, signal.SIGKILL)
    controller.wait()
    assert runs.left_over(killed) == {}
    code, said = runs.run("--resume", "--out", str(killed))
    assert code == 0, said

    assert runs.records(killed) == runs.records(whole)
    exports = [out / "checkpoints" / "export" / "model.safetensors" for out in (whole, killed)]
    assert exports[0].read_bytes() == exports[1].read_bytes()
    assert exports[0].read_bytes() != (tmp_path / "model" / "model.safetensors").read_bytes()
    assert runs.left_over(whole) == runs.left_over(killed) == {}


def test_a_run_leaves_what_its_reader_needs(runs, tmp_path: Path):
    out = tmp_path / "out"
    code, said = runs.run(str(runs.write_recipe(steps=2)), "--out", str(out), "--json")
    assert code == 0, said
    events = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert [event["step"] for event in events if event["event"] == "step"] == [0, 1]
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["steps"], summary["weight_version"], summary["samples_trained"]) == (2, 2, 16)
    assert summary["tito_hard_mismatches"] == 0
    assert {path.name for path in (out / "samples").iterdir()} == {"step-0000.jsonl", "step-0001.jsonl"}
    assert "<svg" in (out / "report.html").read_text()
    assert (out / "config.toml").is_file()
    code, said = runs.run(str(tmp_path / "recipe.toml"), "--out", str(out))
    assert code == 2
    assert "--resume" in said


def test_the_run_goes_on_when_one_of_two_engines_is_killed(runs, tmp_path: Path):
    out = tmp_path / "out"
    recipe = str(runs.write_recipe(steps=6))
    process = runs.start(recipe, "--out", str(out), "--set", "engines.count=2")
    runs.wait_for("the first step", lambda: runs.records(out))
    first = runs.processes(out)["engine-0"]
    os.kill(first, signal.SIGKILL)
    assert process.wait(timeout=300) == 0, runs.output()
    steps = runs.records(out)
    assert [record["weight_version"] for record in steps] == [1, 2, 3, 4, 5, 6]
    names = [
        sample["rollout_id"]
        for file in sorted((out / "samples").iterdir())
        for sample in map(json.loads, file.read_text().splitlines())
    ]
    assert len(names) == len(set(names)) == 6 * 8
    assert "engine-0" in runs.output()
    assert sum(record["samples_aborted"] for record in steps) == 0, reasons(out)
    assert runs.left_over(out) == {}


@pytest.mark.parametrize(("sign", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_shuts_everything_down(runs, tmp_path: Path, sign, code):
    out = tmp_path / "out"
    process = runs.start(str(runs.write_recipe(steps=1000)), "--out", str(out))
    runs.wait_for("the first step", lambda: runs.records(out))
    process.send_signal(sign)
    assert process.wait(timeout=60) == code
    assert "everything was shut down" in runs.output()
    assert "Traceback" not in runs.output()
    assert runs.left_over(out) == {}


@pytest.mark.parametrize(
    ("agent", "reason"),
    [
        pytest.param(RAISES, "no such thing", id="raises"),
        pytest.param(NEVER_CALLS, "never called the model", id="never-calls", marks=pytest.mark.slow),
        pytest.param(SLEEPS, "deadline", id="sleeps", marks=pytest.mark.slow),
        pytest.param(BLOCKS, "blocked the event loop", id="blocks", marks=pytest.mark.slow),
    ],
)
def test_an_agent_that_cannot_work_ends_the_run_with_one_sentence(runs, tmp_path: Path, agent, reason):
    out = tmp_path / "out"
    code, said = runs.run(str(runs.write_recipe(agent=agent)), "--out", str(out), "--set", "rollout.timeout_s=3.0")
    assert code == 1, said
    sentences = [line for line in said.splitlines() if line.startswith("miles: ")]
    assert len(sentences) == 1
    assert reason in sentences[0]
    assert "Traceback" not in said
    assert runs.left_over(out) == {}


@pytest.mark.slow
@pytest.mark.parametrize("role", ["trainer-0", "router", "sessions", "rollout"])
def test_a_vital_process_that_is_killed_stops_the_run_with_its_name(runs, tmp_path: Path, role):
    out = tmp_path / "out"
    process = runs.start(str(runs.write_recipe(steps=1000)), "--out", str(out))
    runs.wait_for("the first step", lambda: runs.records(out))
    os.kill(runs.processes(out)[role], signal.SIGKILL)
    assert process.wait(timeout=120) == 1
    sentences = [line for line in runs.output().splitlines() if line.startswith("miles: ")]
    assert len(sentences) == 1
    assert role in sentences[0]
    assert runs.left_over(out) == {}


def test_an_agent_that_cannot_be_imported_is_a_fault_of_the_recipe(runs, tmp_path: Path):
    recipe = str(runs.write_recipe(agent="import a_module_that_is_not_there\n"))
    code, said = runs.run(recipe, "--out", str(tmp_path / "out"))
    assert code == 2, said
    assert "a_module_that_is_not_there" in said
    assert "Traceback" not in said
