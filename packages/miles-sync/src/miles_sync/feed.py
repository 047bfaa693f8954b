"""Runs a transport's iterator in a thread of its own, under deadlines."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from miles_core.errors import WeightSyncError
from miles_sync.parcel import Parcel, Transport


class Feed:
    """The parcels of one push. All work on tensors happens in one daemon thread, from the first parcel to the last.

    One thread, because gradient modes, CUDA devices and collectives are bound to threads; a daemon, because a
    collective whose partner died never returns and must not keep the process alive.
    """

    def __init__(
        self, transport: Transport, weights: Iterable[tuple[str, Tensor]], *, version: int, timeout_s: float
    ) -> None:
        self._weights: Iterator[tuple[str, Tensor]] = iter(weights)
        self._parcels = transport.parcels(self._weights, version)
        self._timeout_s = timeout_s
        self._stuck = False
        self._work: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
        threading.Thread(target=self._serve, args=(device,), name="miles-weights", daemon=True).start()

    async def next(self) -> Parcel | None:
        """The next parcel, None after the last; the storage of the one before is gone when this returns.

        What the weights themselves raise comes out as WeightSyncError.
        """
        parcel: Parcel | None = await self._run(lambda: next(self._parcels, None))
        return parcel

    async def drain(self) -> None:
        """Release the current parcel and read the remaining weights without using them.

        Other trainer ranks take part in reading; they would wait for ever for a rank that stopped.
        """
        await self._run(self._drain)

    async def close(self) -> None:
        """Release the current parcel and end the thread.

        A thread that already missed a deadline is not waited for; it releases what it made when it comes back.
        """
        try:
            if self._stuck:
                self._work.put((self._close, Future()))
            else:
                await self._run(self._close)
        finally:
            self._work.put(None)

    def _drain(self) -> None:
        self._close()
        deque(self._weights, maxlen=0)

    def _close(self) -> None:
        close = getattr(self._parcels, "close", None)
        if close is not None:
            close()

    def _serve(self, device: int | None) -> None:
        if device is not None:
            torch.cuda.set_device(device)
        while (item := self._work.get()) is not None:
            work, outcome = item
            if not outcome.set_running_or_notify_cancel():
                continue
            try:
                outcome.set_result(work())
            except BaseException as error:  # noqa: BLE001  # handed to the waiting task, which raises it
                outcome.set_exception(error)
            del item, work, outcome

    async def _run(self, work: Callable[[], Any]) -> Any:
        outcome: Future[Any] = Future()
        self._work.put((work, outcome))
        deadline = asyncio.timeout(self._timeout_s)
        try:
            async with deadline:
                return await asyncio.wrap_future(outcome)
        except WeightSyncError:
            raise
        except Exception as error:
            if deadline.expired():
                self._stuck = True
                raise WeightSyncError(
                    f"the trainer yielded no further tensors within {self._timeout_s:g} s; is one of its ranks gone?"
                ) from error
            raise WeightSyncError(f"the trainer's weights cannot be read: {type(error).__name__}: {error}") from error
