"""Processes that must not outlive a run, and waits that say what they wait for."""

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from miles_cli.pipeline.calls import last_line, within
from miles_cli.pipeline.janitor import clean
from miles_cli.pipeline.placement import plan
from miles_cli.pipeline.process import start_time
from miles_cli.pipeline.run_folder import RunFolder
from miles_cli.pipeline.together import together
from miles_core.errors import ConfigError, DeadlineError

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
CONTROLLER = """
import subprocess, sys, time
from pathlib import Path
from miles_cli.pipeline.janitor import Janitor
from miles_cli.pipeline.run_folder import RunFolder
folder = RunFolder.open(Path(sys.argv[1]), mode="new")
janitor = Janitor.start(lock_fd=folder.lock_fd)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
janitor.watch({"child": child.pid})
print(child.pid, janitor.pid, flush=True)
time.sleep(600)
"""


def gone(pid: int, *, within_s: float = 20.0) -> bool:
    """Whether the process ends in time."""
    deadline = time.monotonic() + within_s
    while start_time(pid) is not None and time.monotonic() < deadline:
        time.sleep(0.02)
    return start_time(pid) is None


def test_a_controller_killed_with_sigkill_leaves_no_child_and_frees_its_folder(tmp_path: Path):
    command = [sys.executable, "-c", CONTROLLER, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as controller:
        assert controller.stdout is not None
        child, janitor = map(int, controller.stdout.readline().split())
        with pytest.raises(ConfigError, match="another run works in"):
            RunFolder.open(tmp_path / "run", mode="new")
        controller.kill()
    assert gone(child)
    assert gone(janitor)
    RunFolder.open(tmp_path / "run", mode="new").close()


def test_the_lock_is_held_until_the_last_process_is_gone(tmp_path: Path):
    lock = (tmp_path / ".lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    command = [sys.executable, "-m", "miles_cli.pipeline.janitor"]
    janitor = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(lock.fileno(),))
    lock.close()
    with (tmp_path / ".lock").open("w") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    janitor.communicate(b"", timeout=30)
    with (tmp_path / ".lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_process_that_took_over_an_old_id_is_spared():
    with subprocess.Popen(SLEEP) as child:
        started = start_time(child.pid)
        assert started is not None
        clean({child.pid: started - 1.0})
        assert child.poll() is None
        clean({child.pid: started})
        assert child.wait(timeout=10) == -signal.SIGKILL


def test_a_settled_process_dies_with_its_parent_and_logs_to_its_role(tmp_path: Path):
    inner = f"""
import sys, time
from pathlib import Path
from miles_cli.pipeline.process import settle
print("ready", settle("engine-0", Path({str(tmp_path)!r})), flush=True)
time.sleep(600)
"""
    outer = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {inner!r}]); time.sleep(600)"
    log = tmp_path / "engine-0.log"
    with subprocess.Popen([sys.executable, "-c", outer]) as parent:
        deadline = time.monotonic() + 30
        while not (log.is_file() and log.read_text().endswith("\n")) and time.monotonic() < deadline:
            time.sleep(0.02)
        child = int(log.read_text().split()[-1])
        assert start_time(child) is not None
        parent.kill()
    assert gone(child)


def test_a_dead_process_has_no_start_time():
    assert start_time(os.getpid()) is not None
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    assert start_time(done.pid) is None


def test_a_late_answer_names_what_was_waited_for():
    with pytest.raises(DeadlineError, match=r"waited 0\.05 s for engine-3 to serve"):
        asyncio.run(within(0.05, "engine-3 to serve", asyncio.sleep(30)))


def test_a_timeout_inside_the_work_is_not_taken_for_the_deadline():
    async def inner() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        asyncio.run(within(5.0, "it", inner()))


def test_the_first_error_of_several_is_raised_and_the_others_are_stopped():
    stopped = []

    async def slow() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            stopped.append("slow")

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ConfigError("no.")

    with pytest.raises(ConfigError, match="no"):
        asyncio.run(together(slow(), fails()))
    assert stopped == ["slow"]


def test_results_come_in_the_order_of_the_calls():
    async def after(seconds: float, value: int) -> int:
        await asyncio.sleep(seconds)
        return value

    async def run() -> list[int]:
        return await together(after(0.02, 1), after(0.0, 2), after(0.01, 3))

    assert asyncio.run(run()) == [1, 2, 3]


def test_the_last_line_of_a_log_skips_what_says_nothing(tmp_path: Path):
    log = tmp_path / "a.log"
    log.write_text("first\nlast words\n\n   \n")
    assert last_line(log) == "last words"
    assert last_line(tmp_path / "absent.log") == ""


def placed(**changes: object) -> list[tuple[str, float, float]]:
    """role, cpus, gpus of a plan."""
    asked: dict = {
        "ranks": 1, "trainer_threads": 2, "trainer_cuda": False, "engines": 2, "engine_threads": 4,
        "engine_cuda": False, "gpus": 0, "embedded": True,
    }  # fmt: skip
    return [(place.role, place.cpus, place.gpus) for place in plan(**{**asked, **changes})]


def test_an_embedded_cluster_fits_every_process_whatever_the_machine_has():
    assert placed() == [
        ("engine-0", 0.01, 0.0),
        ("engine-1", 0.01, 0.0),
        ("trainer-0", 0.01, 0.0),
        ("sessions", 0.01, 0.0),
        ("rollout", 0.01, 0.0),
        ("router", 0.01, 0.0),
    ]


def test_a_joined_cluster_reserves_what_trainer_and_engines_compute_with():
    shares = {role: cpus for role, cpus, _ in placed(embedded=False)}
    assert (shares["engine-0"], shares["trainer-0"], shares["router"]) == (4.0, 2.0, 0.01)


@pytest.mark.parametrize(("gpus", "share"), [(1, 0.33), (2, 0.66), (3, 1.0), (8, 1.0)])
def test_gpus_are_shared_evenly_when_there_are_too_few(gpus, share):
    shares = {role: gpu for role, _, gpu in placed(gpus=gpus, trainer_cuda=True, engine_cuda=True)}
    assert [shares[role] for role in ("engine-0", "engine-1", "trainer-0", "router")] == [share, share, share, 0.0]


def test_a_supervised_run_has_trainers_only():
    assert [role for role, _, _ in placed(engines=0, ranks=2)] == ["trainer-0", "trainer-1"]


def test_the_age_of_a_process_counts_from_its_start():
    program = "import time; time.sleep(0.3); from miles_cli.pipeline.process import age_s; print(age_s())"
    before = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert 0.3 <= float(done.stdout) <= time.monotonic() - before + 0.02  # clock ticks are 10 ms


INTERRUPTIBLE = """
import asyncio, time
from miles_cli.interrupts import Terminated, run_interruptible

async def work():
    print("ready", flush=True)
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.5)
        print("released", flush=True)

try:
    run_interruptible(work())
except (KeyboardInterrupt, Terminated) as signal:
    time.sleep(0.3)
    print(type(signal).__name__, flush=True)
"""


@pytest.mark.parametrize(("sign", "raised"), [(signal.SIGINT, "KeyboardInterrupt"), (signal.SIGTERM, "Terminated")])
def test_a_signal_lets_the_work_release_what_it_holds_and_further_ones_change_nothing(sign, raised):
    command = [sys.executable, "-c", INTERRUPTIBLE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for _ in range(6):
            process.send_signal(sign)
            time.sleep(0.1)
        assert process.stdout.read() == f"released\n{raised}\n"
        assert process.wait(timeout=10) == 0
