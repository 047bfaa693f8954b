"""The runner's side of one reward worker: start it, ask it, kill it."""

import asyncio
import contextlib
import dataclasses
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import orjson

from miles_core.env import child_environment
from miles_core.errors import RewardError
from miles_core.prompt import Prompt
from miles_core.rewards.wire import PREFIX_BYTES, lengths, pack
from miles_core.sample import Sample
from miles_core.sample_codec import encode


class RewardProcess:
    """One child process with one loaded reward; it judges one sample at a time and can be killed at any moment."""

    def __init__(self, process: asyncio.subprocess.Process, lifeline: int) -> None:
        self._process = process
        self._lifeline = lifeline

    @property
    def pid(self) -> int:
        """Process id; also the id of its process group."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is alive, as far as is known."""
        return self._process.returncode is None

    @classmethod
    async def spawn(cls) -> Self:
        """A process that has no reward yet; RewardError when none can be started."""
        child_end, lifeline = os.pipe()
        try:
            # A session of its own: a reward's own children die with it, and the terminal's Ctrl-C reaches neither.
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-P", "-m", "miles_core.rewards.worker", str(child_end)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                pass_fds=(child_end,),
                start_new_session=True,
                env=child_environment({"PYTHONUNBUFFERED": "1"}),
            )
        except BaseException as error:
            os.close(lifeline)
            if isinstance(error, OSError):
                raise RewardError(f"expected to start a reward worker, found: {error}.") from None
            raise
        finally:
            os.close(child_end)
        return cls(process, lifeline)

    async def load(self, name: str, options: Mapping[str, Any], *, base: Path, timeout_s: float) -> None:
        """Load the reward in the process; RewardError when it cannot, or not in time."""
        setup = {"name": name, "options": dict(options), "base": str(base), "path": sys.path}
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._exchange(pack(setup))
        except TimeoutError:
            raise RewardError(f"reward {name!r}: expected it loaded within {timeout_s:g} s; it is not.") from None
        if "error" in answer:
            raise RewardError(str(answer["error"]))

    async def judge(self, sample: Sample, prompt: Prompt) -> float:
        """The reward; RewardError with what the function raised, or when the process died."""
        head = {"prompt": {field.name: getattr(prompt, field.name) for field in dataclasses.fields(prompt)}}
        answer = await self._exchange(pack(head, encode([sample])))
        if "error" in answer:
            raise RewardError(str(answer["error"]))
        return float(answer["reward"])

    async def _exchange(self, frame: bytes) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None, "the process is started with pipes"
        assert stdout is not None, "the process is started with pipes"
        try:
            stdin.write(frame)
            await stdin.drain()
            head_bytes, _ = lengths(await stdout.readexactly(PREFIX_BYTES))
            return orjson.loads(await stdout.readexactly(head_bytes))
        except (asyncio.IncompleteReadError, ConnectionError):
            code = await self._process.wait()
            raise RewardError(f"the reward's process ended (exit code {code}) before it answered.") from None

    async def kill(self) -> None:
        """End the process and every process it started; returns when it is gone. May be called twice."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
