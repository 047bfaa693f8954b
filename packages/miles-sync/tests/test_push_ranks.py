import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow


def run_ranks(tmp_path, url):
    script = str(Path(__file__).with_name("rank.py"))
    command = [sys.executable, script]
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "meet"), url], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        printed = [process.communicate(timeout=150)[0].split("\n") for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait(timeout=10)
    assert [process.returncode for process in ranks] == [0, 0]
    return printed


def test_weights_that_are_gathered_over_ranks_arrive_whole(start_engine, tmp_path):
    engine = start_engine({f"layer.{n}": torch.zeros(8, 8) for n in range(12)})
    first, second = run_ranks(tmp_path, engine.url)
    assert first[:2] == [f"acknowledged {engine.url}", "gathered 12"]
    assert second[0] == "gathered 12"
    for number in range(12):
        halves = engine.weights[f"layer.{number}"].split(4)
        assert [half.unique().tolist() for half in halves] == [[10.0 * number], [10.0 * number + 1]]


def test_the_other_ranks_do_not_hang_when_every_engine_is_gone(tmp_path):
    first, second = run_ranks(tmp_path, "http://127.0.0.1:9")
    assert first[:2] == ["no engine", "gathered 12"]
    assert second[0] == "gathered 12"
