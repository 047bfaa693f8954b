"""The process that runs one reward function: `python -m miles_core.rewards.worker LIFELINE_FD`.

It reads frames from stdin and answers on stdout; what the reward prints goes to stderr. It ends when stdin closes.
"""

import asyncio
import fcntl
import inspect
import math
import os
import queue
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from miles_core.plugins import load
from miles_core.prompt import Prompt
from miles_core.rewards.wire import PREFIX_BYTES, lengths, pack
from miles_core.sample_codec import decode


def main() -> None:
    """Load the reward named by the first frame, then judge one sample a frame."""
    _die_with_parent(int(sys.argv[1]))
    frames, answers = _take_standard_streams()
    inbox: queue.SimpleQueue[tuple[dict[str, Any], bytes]] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(frames, inbox), daemon=True).start()
    setup, _ = inbox.get()
    sys.path.extend(entry for entry in setup["path"] if entry not in sys.path)
    options = setup["options"]
    try:
        reward = load("rewards", setup["name"], base=Path(setup["base"]), options=options)
    except Exception as error:  # noqa: BLE001 - the runner reports why the worker cannot start
        _write(answers, {"error": f"{error}"})
        return
    _write(answers, {"ready": True})
    while True:
        head, body = inbox.get()
        _write(answers, _judge(reward, head, body, options))


def _judge(reward: Any, head: Mapping[str, Any], body: bytes, options: Mapping[str, Any]) -> dict[str, Any]:
    try:
        value = reward(decode(body)[0], Prompt(**head["prompt"]), **options)
        number = float(asyncio.run(_wait(value)) if inspect.isawaitable(value) else value)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a failing reward is data: the sample's reason
        return {"error": f"{type(error).__name__}: {error}"}
    # JSON has no NaN, so a number that is not finite goes back as a reason.
    return {"reward": number} if math.isfinite(number) else {"error": f"expected a finite number, found {number}."}


async def _wait(value: Any) -> Any:
    return await value


def _die_with_parent(lifeline: int) -> None:
    """Have the kernel kill this process group when the parent's end of the pipe closes.

    A thread that waits for the end of stdin cannot do it alone: a regular expression that never ends holds the GIL.
    """
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def _take_standard_streams() -> tuple[BinaryIO, BinaryIO]:
    """The pipes of the runner; descriptors 0 and 1 become empty input and stderr, for the reward's own code."""
    frames, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return frames, answers


def _read(frames: BinaryIO, inbox: "queue.SimpleQueue[tuple[dict[str, Any], bytes]]") -> None:
    while len(prefix := frames.read(PREFIX_BYTES)) == PREFIX_BYTES:
        head_bytes, body_bytes = lengths(prefix)
        inbox.put((orjson.loads(frames.read(head_bytes)), frames.read(body_bytes)))
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _write(answers: BinaryIO, head: Mapping[str, Any]) -> None:
    answers.write(pack(head))
    answers.flush()


if __name__ == "__main__":
    main()
