"""Deadlines of rewards, in processes that can be killed."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from miles_core.errors import PluginError, RewardError
from miles_core.rewards.score import RewardConfig, RewardRunner
from miles_core.sample import Finish

PLUGIN = """
import asyncio, os, re, subprocess, sys, time

def length(sample, prompt, *, scale=1.0):
    print("a reward may print")
    return scale * len(sample.messages[-1]["content"]) + prompt.label

def sleeps(sample, prompt):
    if sample.messages[-1]["content"] == "hang":
        time.sleep(60)
    return float(os.getpid())

def backtracks(sample, prompt):
    return float(bool(re.match(r"(a+)+b", "a" * 60)))

def misbehaves(sample, prompt):
    match sample.messages[-1]["content"]:
        case "raise": raise ValueError("no such thing")
        case "exit": sys.exit(3)
        case "die": os._exit(4)
        case "nan": return float("nan")
        case "text": return "high"
    return 0.5

async def waits(sample, prompt):
    await asyncio.sleep(0.01)
    return 0.75

def child(sample, prompt, *, note):
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    open(note, "w").write(str(process.pid))
    time.sleep(60)
"""


@pytest.fixture
def base(tmp_path):
    (tmp_path / "mine.py").write_text(PLUGIN)
    yield tmp_path
    for name in [n for n in sys.modules if n.startswith("miles_plugin_")]:
        del sys.modules[name]


def config(name, **fields):
    return RewardConfig(name=f"mine.py:{name}", **fields)


def gone(pid, *, within_s=5.0):
    """Whether the process ends in time (a zombie that nobody waits for has ended)."""
    ends = time.monotonic() + within_s
    while time.monotonic() < ends:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def score(runner_config, sample, prompt, base, *, times=1):
    async def main():
        async with RewardRunner(runner_config, base=base) as runner:
            return [await runner.score(sample, prompt) for _ in range(times)]

    return asyncio.run(main())


def test_a_reward_in_a_worker_gets_sample_prompt_and_options(base, make_sample, make_prompt):
    prompt = make_prompt(3, metadata={"a": 1}, tools=({"function": {"name": "f"}},))
    (judged,) = score(config("length", options={"scale": 2.0}), make_sample("12345"), prompt, base)
    assert (judged.reward, judged.finish, judged.error) == (13.0, Finish.STOP, None)


def test_an_async_reward_works_in_a_worker_and_in_process(base, make_sample, make_prompt):
    for in_process in (None, True):
        (judged,) = score(config("waits", in_process=in_process), make_sample(), make_prompt(), base)
        assert judged.reward == 0.75


def test_a_reward_that_fails_costs_its_sample_and_says_why(base, make_sample, make_prompt):
    told = {
        "raise": "ValueError: no such thing",
        "exit": "SystemExit: 3",
        "nan": "expected a finite number, found nan",
        "text": "could not convert string to float",
        "die": "the reward's process ended (exit code 4)",
    }

    async def main():
        async with RewardRunner(config("misbehaves", workers=1), base=base) as runner:
            failures = {kind: await runner.score(make_sample(kind), make_prompt()) for kind in told}
            return failures, await runner.score(make_sample("well"), make_prompt())

    failures, well = asyncio.run(main())
    for kind, judged in failures.items():
        assert (judged.finish, judged.reward) == (Finish.ABORTED, 0.0)
        assert "the reward 'mine.py:misbehaves' failed: " in judged.error
        assert told[kind] in judged.error
    assert well.reward == 0.5


def test_a_reward_that_hangs_is_killed_at_its_deadline_and_its_worker_replaced(base, make_sample, make_prompt):
    async def main():
        async with RewardRunner(config("sleeps", timeout_s=1.0, workers=1), base=base) as runner:
            first = await runner.score(make_sample("a"), make_prompt())
            again = await runner.score(make_sample("b"), make_prompt())
            start = time.monotonic()
            late = await runner.score(make_sample("hang"), make_prompt())
            seconds = time.monotonic() - start
            assert gone(int(first.reward))
            fresh = await runner.score(make_sample("c"), make_prompt())
            return first.reward, again.reward, late, seconds, fresh.reward

    first, again, late, seconds, fresh = asyncio.run(main())
    assert first == again != fresh
    assert late.error.endswith("it ran past its deadline of 1 s.")
    assert 1.0 <= seconds < 6


def test_a_regular_expression_without_end_is_killed_too(base, make_sample, make_prompt):
    (judged,) = score(config("backtracks", timeout_s=0.5), make_sample(), make_prompt(), base)
    assert judged.error.endswith("it ran past its deadline of 0.5 s.")


def test_one_slow_reward_does_not_hold_up_the_others(base, make_sample, make_prompt):
    async def main():
        async with RewardRunner(config("sleeps", timeout_s=20.0, workers=2), base=base) as runner:
            slow = asyncio.create_task(runner.score(make_sample("hang"), make_prompt()))
            quick = [await runner.score(make_sample(str(i)), make_prompt()) for i in range(5)]
            assert not slow.done()
            await runner.close()
            return quick, await slow

    quick, slow = asyncio.run(main())
    assert all(judged.reward > 0 for judged in quick)
    assert slow.finish is Finish.ABORTED


def test_what_a_reward_started_dies_with_it(base, tmp_path, make_sample, make_prompt):
    note = tmp_path / "pid"
    (judged,) = score(config("child", options={"note": str(note)}, timeout_s=1.5), make_sample(), make_prompt(), base)
    assert judged.finish is Finish.ABORTED
    assert gone(int(note.read_text()))


def test_a_cancelled_judgement_leaves_no_process(base, make_sample, make_prompt):
    async def main():
        runner = RewardRunner(config("sleeps", workers=1), base=base)
        await runner.start()
        (worker,) = runner._idle
        task = asyncio.create_task(runner.score(make_sample("hang"), make_prompt()))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert gone(worker.pid)
        await runner.close()

    asyncio.run(main())


def test_a_killed_runner_leaves_no_worker_behind_even_one_that_holds_the_interpreter(base):
    script = f"""
        import asyncio, pathlib
        from miles_core.prompt import Prompt
        from miles_core.rewards.score import RewardConfig, RewardRunner
        from miles_core.sample import Finish, Sample

        async def main():
            runner = RewardRunner(RewardConfig(name="mine.py:backtracks", workers=1), base=pathlib.Path({str(base)!r}))
            await runner.start()
            print(runner._idle[0].pid, flush=True)
            message = {{"role": "assistant", "content": "hang"}}
            sample = Sample(prompt_id="p", rollout_id="r", spans=(), finish=Finish.STOP, messages=(message,))
            await runner.score(sample, Prompt(prompt_id="p", messages=(message,)))

        asyncio.run(main())
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    worker = int(process.stdout.readline())
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert gone(worker)


def test_closing_leaves_no_process_and_refuses_further_work(base, make_sample, make_prompt):
    async def main():
        runner = RewardRunner(config("length"), base=base)
        judged = await runner.score(make_sample(), make_prompt(1))
        pids = [worker.pid for worker in runner._live]
        await runner.close()
        await runner.close()
        refused = await runner.score(make_sample(), make_prompt(1))
        return judged, pids, refused

    judged, pids, refused = asyncio.run(main())
    assert judged.reward == 5.0
    assert pids
    assert all(gone(pid) for pid in pids)
    assert "found one that was closed" in refused.error


def test_a_worker_that_is_still_starting_is_closed_too(base, make_sample, make_prompt):
    async def main():
        runner = RewardRunner(config("sleeps", workers=1), base=base)
        task = asyncio.create_task(runner.score(make_sample("hang"), make_prompt()))
        while not runner._live:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)
        pids = [worker.pid for worker in runner._live]
        await runner.close()
        return pids, await asyncio.wait_for(task, 10)

    pids, judged = asyncio.run(main())
    assert judged.finish is Finish.ABORTED
    assert all(gone(pid) for pid in pids)


def test_an_aborted_sample_is_not_judged(base, make_sample, make_prompt):
    sample = make_sample().aborted("the agent raised")
    (judged,) = score(config("misbehaves"), sample, make_prompt(), base)
    assert judged is sample


def test_a_reward_with_another_signature_is_refused_at_construction(base):
    with pytest.raises(PluginError, match="unexpected keyword argument 'scal'"):
        RewardRunner(config("length", options={"scal": 1}), base=base)


def test_a_reward_that_loads_only_here_is_told_when_its_worker_starts(base):
    async def main():
        runner = RewardRunner(config("length"), base=base)
        (base / "mine.py").unlink()
        with pytest.raises(RewardError, match=r"expected a file at .*mine\.py, found none"):
            await runner.start()
        await runner.close()

    asyncio.run(main())


def test_built_in_rewards_are_found_by_name(make_sample, make_prompt):
    for name, answer, label, reward in [
        ("math", "4", "4", 1.0),
        ("boxed", r"\boxed{3}", "4", 0.0),
        ("f1", "x b", "b c", 0.5),
        ("choice", "(B)", "B", 1.0),
    ]:
        (judged,) = score(RewardConfig(name=name), make_sample(answer), make_prompt(label), None)
        assert judged.reward == pytest.approx(reward)


def test_a_late_reward_in_process_is_data_too(make_sample, make_prompt):
    options = {"url": "http://127.0.0.1:1/x", "attempts": 50}
    (judged,) = score(RewardConfig(name="remote", options=options, timeout_s=0.4), make_sample(), make_prompt(), None)
    assert judged.error == "the reward 'remote' failed: it ran past its deadline of 0.4 s."
