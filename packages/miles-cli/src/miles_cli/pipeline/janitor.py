"""A small process that outlives the run by a moment and leaves nothing behind, however the run ended.

The controller writes the processes of the run down a pipe. When the pipe closes, the controller is gone: by its own
end, an error or a SIGKILL. The janitor then kills what is left of the run, removes orphaned shared memory and only then
lets go of the run folder's lock, so that a resumed run never meets the earlier one.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Self

from miles_cli.pipeline.process import start_time

KILL_WAIT_S = 10.0
POLL_S = 0.05


class Janitor:
    """The controller's end of the pipe."""

    def __init__(self, process: "subprocess.Popen[bytes]", pipe: IO[str]) -> None:
        self._process = process
        self._pipe = pipe

    @classmethod
    def start(cls, *, lock_fd: int) -> Self:
        """Start the janitor of the run whose folder lock is `lock_fd`."""
        reader, writer = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-m", "miles_cli.pipeline.janitor"],
            stdin=reader,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(lock_fd,),
            start_new_session=True,  # Ctrl-C in the terminal is for the controller
        )
        os.close(reader)
        return cls(process, os.fdopen(writer, "w", encoding="utf-8"))

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def watch(self, roles: Mapping[str, int]) -> None:
        """Hand over processes that must not outlive the controller."""
        for pid in roles.values():
            started = start_time(pid)
            if started is not None and pid != self.pid:
                self._pipe.write(f"{pid} {started}\n")
        self._pipe.flush()

    def close(self) -> None:
        """Tell it that the run is over and wait until it is done."""
        self._pipe.close()
        self._process.wait(timeout=KILL_WAIT_S + 30)


def clean(processes: Mapping[int, float]) -> None:
    """Kill those of the processes (id -> start time) that still run, and wait until they are gone."""
    deadline = time.monotonic() + KILL_WAIT_S
    left = dict(processes)
    while left and time.monotonic() < deadline:
        left = {pid: started for pid, started in left.items() if start_time(pid) == started}
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if left:
            time.sleep(POLL_S)


def main() -> None:
    """Read processes from standard input until it closes, then clean up."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    mine = os.getpid()
    processes = {}
    for line in sys.stdin:
        pid, started = line.split()
        if int(pid) != mine:
            processes[int(pid)] = float(started)
    clean(processes)
    if any(Path("/dev/shm").glob("miles-*")):
        from miles_sync.orphans import remove_orphans

        remove_orphans()


if __name__ == "__main__":
    main()
