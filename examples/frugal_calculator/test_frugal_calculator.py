"""The example's own facts, and a whole run of it."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from miles_core.plugins import load
from miles_core.prompt import Prompt
from miles_core.sample import Finish, Origin, Sample, Span

FOLDER = Path(__file__).parent


def sample(answer: str, wasted: int) -> Sample:
    return Sample(
        prompt_id="0-0",
        rollout_id="0/0-0/0",
        spans=(Span(origin=Origin.PROMPT, ids=(1, 2)),),
        finish=Finish.STOP,
        messages=({"role": "user", "content": "9 + 3?"}, {"role": "assistant", "content": answer}),
        metadata={"agent": {"wasted_calls": wasted}},
    )


@pytest.mark.parametrize(
    ("answer", "wasted", "reward"), [("12", 0, 1.0), ("12", 1, 0.75), ("12", 5, 0.0), ("13", 0, 0.0), ("13", 1, 0.0)]
)
def test_a_right_answer_is_worth_one_less_its_wasted_calls(answer: str, wasted: int, reward: float) -> None:
    frugal = load("rewards", "reward.py:frugal", base=FOLDER)
    prompt = Prompt(prompt_id="0-0", messages=({"role": "user", "content": "9 + 3?"},), label="12")
    assert asyncio.run(frugal(sample(answer, wasted), prompt, cost=0.25)) == reward


@pytest.mark.parametrize(
    ("arguments", "result"),
    [
        ('{"expression": "9 + 3"}', "12"),
        ('{"expression": "9 * 3"}', "error: not an operation"),
        ("", "error: not an operation"),
    ],
)
def test_the_tool_adds_and_nothing_else(arguments: str, result: str) -> None:
    add = sys.modules[load("agents", "agent.py:solve", base=FOLDER).__module__].add
    assert add(arguments) == result


def test_the_recipe_runs_from_start_to_summary(tmp_path: Path) -> None:
    out = tmp_path / "run"
    miles = Path(sys.executable).with_name("miles")
    command = [miles, "run", FOLDER / "recipe.toml", "--out", out, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    summary = json.loads((out / "summary.json").read_text())
    assert summary["steps"] == 3
    assert summary["samples_trained"] + summary["samples_aborted"] == 3 * 4 * 8
    assert summary["samples_aborted"] == 0
    assert summary["tito_hard_mismatches"] == 0
    rewards = [json.loads(line)["reward_mean"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert all(0.0 <= reward <= 1.0 for reward in rewards)
    assert len(rewards) == 3
