"""Limits that a process which checks sets itself, so that nothing it renders outlives or starves the run."""

import ctypes
import math
import multiprocessing
import os
import signal
import sys
import threading

_PR_SET_PDEATHSIG = 1
"""The option of prctl(2) that has the kernel send a signal when the parent ends."""


def end_with_parent() -> None:
    """End this process when its parent does, however that ends: a template that loops would run on for ever.

    On Linux the kernel sees to it. Elsewhere a thread does, between two instructions of the interpreter.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    threading.Thread(target=_end_after, args=(parent,), daemon=True).start()


def _end_after(parent: "multiprocessing.process.BaseProcess") -> None:
    parent.join()
    os._exit(1)


def limit_memory(num_bytes: int) -> None:
    """Bound the address space, where the system can: a text that doubles for ever ends in a MemoryError."""
    if sys.platform == "win32":
        return
    import resource  # noqa: PLC0415 (not everywhere)

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    known = [limit for limit in (soft, hard, num_bytes) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(known), hard))


def limit_cpu(seconds: float) -> None:
    """Bound the CPU time from now on, where the system can: past `seconds` on every core the system ends the process.

    It is the last resort, for a process that nobody is left to end.
    """
    if sys.platform == "win32":
        return
    import resource  # noqa: PLC0415 (not everywhere)

    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = math.ceil(used.ru_utime + used.ru_stime + seconds * (os.cpu_count() or 1)) + 5
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
