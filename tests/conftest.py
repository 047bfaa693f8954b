"""Whole runs of a random tiny model: a recipe, the command, and what it leaves."""

import importlib.util
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

AGENT = """
from openai import AsyncOpenAI


async def run(*, base_url, prompt, request_kwargs, metadata):
    messages = list(prompt["messages"])
    async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        for _ in range(2):
            answer = (await client.chat.completions.create(messages=messages, **request_kwargs)).choices[0]
            messages.append(answer.message.model_dump(exclude_none=True))
            if answer.finish_reason == "length":
                break
            messages.append({"role": "user", "content": "again"})
    return {"reward": float(len(answer.message.content or ""))}
"""
RECIPE = """
[run]
name = "tiny"
steps = {steps}
start_timeout_s = 300.0

[model]
type = "folder"
path = "model"

[data]
path = "prompts.jsonl"

[rollout]
agent = "agent.py:run"
prompts_per_step = 2
samples_per_prompt = 4
max_seq_len = 160
timeout_s = 120.0
sampling.max_tokens = 12

[reward]
name = "agent_reward"

[trainer.optimizer]
lr = 1e-3
"""
COMMAND_S = 300.0


def _tiny_model_writer() -> Callable[[Path], Path]:
    """`write_tiny_model` of the cli's tests."""
    source = Path(__file__).parents[1] / "packages" / "miles-cli" / "tests" / "conftest.py"
    spec = importlib.util.spec_from_file_location("miles_cli_test_models", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.write_tiny_model


@dataclass
class Runs:
    """Starts `miles run` on a recipe in `folder`, and reads what it left."""

    folder: Path
    started: list["subprocess.Popen[str]"] = field(default_factory=list)

    def write_recipe(self, *, steps: int = 3, agent: str = AGENT) -> Path:
        """The recipe with its agent, prompts and model."""
        _tiny_model_writer()(self.folder / "model")
        (self.folder / "agent.py").write_text(agent)
        lines = [json.dumps({"prompt": f"say {number}"}) for number in range(5)]
        (self.folder / "prompts.jsonl").write_text("\n".join(lines) + "\n")
        path = self.folder / "recipe.toml"
        path.write_text(RECIPE.format(steps=steps))
        return path

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """`miles run` in the background; it is ended when the test is."""
        command = [sys.executable, "-m", "miles_cli", "run", *arguments]
        log = (self.folder / f"command-{len(self.started)}.log").open("w")
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, text=True, cwd=self.folder)
        log.close()
        self.started.append(process)
        return process

    def run(self, *arguments: str) -> tuple[int, str]:
        """Exit code and output of `miles run`."""
        process = self.start(*arguments)
        code = process.wait(timeout=COMMAND_S)
        return code, self.output()

    def output(self) -> str:
        """What the last command printed."""
        return (self.folder / f"command-{len(self.started) - 1}.log").read_text()

    def records(self, out: Path) -> list[dict[str, Any]]:
        """The lines of the metrics file without what depends on timing."""
        path = out / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.is_file() else []
        return [{key: value for key, value in json.loads(line).items() if key != "time"} for line in lines]

    def processes(self, out: Path) -> dict[str, int]:
        """Role -> process id, empty before the run has written them."""
        path = out / "processes.json"
        return json.loads(path.read_text()) if path.is_file() else {}

    def wait_for(self, what: str, check: Callable[[], Any], *, timeout_s: float = COMMAND_S) -> Any:
        """The first true answer of `check`."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            answer = check()
            if answer:
                return answer
            if self.started[-1].poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError(f"waited up to {timeout_s:g} s for {what}; the command said: {self.output()}")

    def left_over(self, out: Path, *, timeout_s: float = 20.0) -> dict[str, int]:
        """Processes of the run that are still there after a moment."""
        deadline = time.monotonic() + timeout_s
        while True:
            left = {role: pid for role, pid in self.processes(out).items() if _alive(pid)}
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.1)

    def close(self) -> None:
        """End what still runs."""
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(timeout=60)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    """Runs in a folder of their own."""
    made = Runs(tmp_path)
    yield made
    made.close()


def _alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
