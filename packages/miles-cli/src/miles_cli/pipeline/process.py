"""What every process of a run does first: die with its parent, write its own log, stay within its threads."""

import ctypes
import faulthandler
import gc
import os
import signal
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def settle(role: str, logs: Path) -> int:
    """Make this process a member of the run and return its id.

    On Linux the kernel kills it when its parent dies, whatever it is doing. Its output goes to `logs/ROLE.log`.
    """
    _die_with_parent()
    logs.mkdir(parents=True, exist_ok=True)
    with (logs / f"{role}.log").open("ab", buffering=0) as log:
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())
    faulthandler.enable(file=sys.stderr)
    return os.getpid()


def keep_for_good() -> None:
    """Take everything that exists now out of garbage collection: what was imported stays for the life of the process.

    Later collections then look at what the work itself made, not at some 300,000 objects of libraries each time.
    """
    gc.collect()
    gc.freeze()


def start_time(pid: int) -> float | None:
    """When the process started, in clock ticks since boot; None when it is gone. Tells a reused id from the old one."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    after_name = text.rpartition(")")[2].split()
    return None if after_name[0] == "Z" else float(after_name[19])


def age_s() -> float:
    """Seconds since this process was started, its imports included; 0 where the system does not tell."""
    ticks = start_time(os.getpid())
    if ticks is None or not hasattr(time, "CLOCK_BOOTTIME"):
        return 0.0
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return max(age, 0.0)


def _die_with_parent() -> None:
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it died before the call
        os.kill(os.getpid(), signal.SIGKILL)
