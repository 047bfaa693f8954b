"""The engine's thread: takes commands between steps, and steps while there is something to compute."""

import logging
import math
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Literal, TypeVar

import torch

from miles_megatron.engine.cache import PAGE
from miles_megatron.engine.config import EngineConfig
from miles_megatron.engine.prefix_index import PrefixIndex, extend_digests
from miles_megatron.engine.request import FinishKind, FinishReason, Request
from miles_megatron.engine.runner import Runner
from miles_megatron.engine.scheduler import Scheduler, Segment
from miles_megatron.engine.stopping import StopRules
from miles_megatron.engine.weight_store import WeightStore

PauseMode = Literal["abort", "retract", "in_place"]
T = TypeVar("T")
_LOG = logging.getLogger(__name__)


class EngineLoop:
    """Owns the model, the caches and the requests. Every method but `call`, `start` and `close` runs in its thread.

    epoch: counts changes of the weights; keys and values of one epoch are never used for another's prompts.
    """

    def __init__(self, runner: Runner, config: EngineConfig, *, rules: StopRules, version: str) -> None:
        self.weights = WeightStore(runner.model)
        self.version = version
        self.paused = False
        self.counters = {"steps": 0, "prompt_tokens": 0, "cached_tokens": 0, "generated_tokens": 0, "failed_steps": 0}
        self.scheduler = Scheduler(
            max_running=config.max_running,
            cache_tokens=max(
                config.cache_tokens or config.max_running * runner.cache.shape.length, runner.context_length
            ),
            chunk=config.chunk,
            prefixes=PrefixIndex(runner.cache.shape.pages),
        )
        self._runner, self._rules, self._threads = runner, rules, config.threads
        self._epoch = 0
        self._closed = False
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="miles-engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def call(self, command: Callable[[], T]) -> "Future[T]":
        """Run `command` in the engine's thread between two steps; its result or exception."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(command())
            except Exception as error:  # noqa: BLE001 - whoever waits for the command gets it
                future.set_exception(error)

        self._inbox.put(run)
        return future

    def close(self, *, timeout_s: float) -> None:
        """End every request as aborted, then the thread, after the running step."""

        def shut() -> None:
            self.abort_all("the engine shuts down")
            self._closed = True

        if self._thread.is_alive():
            self.call(shut)
            self._thread.join(timeout_s)

    def submit(self, request: Request) -> None:
        """Queue a request."""
        self.scheduler.waiting.append(request)

    def abort(self, rid: str) -> bool:
        """End a request with what it has; False when there is none of that name."""
        request = self.scheduler.find(rid)
        if request is not None:
            self._finish(request, FinishReason(FinishKind.ABORT, message="aborted by request"))
        return request is not None

    def abort_all(self, message: str) -> int:
        """End every request with what it has; how many."""
        requests = list(self.scheduler)
        for request in requests:
            self._finish(request, FinishReason(FinishKind.ABORT, message=message))
        return len(requests)

    def pause(self, mode: PauseMode) -> None:
        """Compute nothing until `resume`. `retract` gives the cache back, `in_place` keeps it, `abort` ends all."""
        self.paused = True
        if mode == "abort":
            self.abort_all("generation was paused")
        elif mode == "retract":
            for request in reversed(list(self.scheduler.running)):
                self._retract(request)

    def resume(self) -> None:
        """Go on."""
        self.paused = False

    def flush(self) -> None:
        """Forget all kept prefixes."""
        self.scheduler.prefixes.clear()

    def commit(self, version: str, *, partial: bool = False) -> int:
        """Put the staged weights in as `version`; how many tensors."""
        count = self.weights.commit(partial=partial)
        self.rename(version)
        return count

    def rename(self, version: str) -> None:
        """Call the weights `version` from now on; nothing kept under the old name is used again."""
        self.version = version
        self._epoch += 1
        self.scheduler.prefixes.clear()

    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        with torch.inference_mode():
            while not self._closed:
                self._take_commands()
                if self._has_work():
                    self._step_or_fail()

    def _has_work(self) -> bool:
        return not self.paused and bool(self.scheduler.running or self.scheduler.waiting)

    def _take_commands(self) -> None:
        if not self._has_work():
            self._inbox.get()()
        while not self._closed:
            try:
                command = self._inbox.get_nowait()
            except queue.Empty:
                return
            command()

    def _step_or_fail(self) -> None:
        try:
            self._step()
        except Exception as error:  # noqa: BLE001 - a step that fails ends its requests, not the engine
            _LOG.exception("a step failed")
            self.counters["failed_steps"] += 1
            for request in list(self.scheduler.running):
                self._finish(request, FinishReason(FinishKind.ABORT, message=f"the engine's step failed: {error}"))

    def _step(self) -> None:
        self._make_room()
        segments = self.scheduler.plan()
        sampled = iter(self._runner.compute(segments))
        self.counters["steps"] += 1
        for segment in segments:
            segment.request.computed += segment.length
            self._count(segment)
            if segment.request.computed == len(segment.request.tokens):
                self._take(segment, *next(sampled))

    def _make_room(self) -> None:
        for request in self.scheduler.overflow():
            self._retract(request)
        for admission in self.scheduler.admit():
            admission.request.epoch = self._epoch
            self._runner.cache.load(admission.request.slot, admission.pages)
            if admission.request.admissions == 1:
                self.counters["cached_tokens"] += admission.request.cached_tokens
        hole = self.scheduler.hole()
        if hole is not None:
            request, slot = hole
            self._runner.cache.move(request.slot, slot, request.computed)
            request.slot = slot

    def _count(self, segment: Segment) -> None:
        prompt_left = max(0, segment.request.prompt_tokens - segment.start)
        self.counters["prompt_tokens"] += min(segment.length, prompt_left)

    def _take(self, segment: Segment, token: int, logprob: float) -> None:
        request = segment.request
        if segment.length > 1 or request.num_outputs == 0:
            self._publish(request)
        if not math.isfinite(logprob):
            message = f"token {request.num_outputs} has log-probability {logprob}: the model's output is not finite"
            self._finish(request, FinishReason(FinishKind.ABORT, message=message))
            return
        request.append(token, logprob, self.version)
        self.counters["generated_tokens"] += 1
        reason = self._rules.check(request)
        if reason is not None:
            self._finish(request, reason)
        elif request.stream:
            request.deliver(request.completion(self.version, None))

    def _finish(self, request: Request, reason: FinishReason) -> None:
        if request.slot >= 0:
            self._publish(request)
            self._runner.cache.release(request.slot, request.computed)
        self.scheduler.remove(request)
        request.deliver(request.completion(self.version, reason))

    def _retract(self, request: Request) -> None:
        self._publish(request)
        self._runner.cache.release(request.slot, request.computed)
        self.scheduler.retract(request)

    def _publish(self, request: Request) -> None:
        """Keep the full pages of what a request has computed, unless several sets of weights wrote them."""
        if request.epoch != self._epoch:
            return
        extend_digests(request.page_digests, request.tokens)
        places = self.scheduler.prefixes.add(request.page_digests[: request.computed // PAGE], request.tokens)
        self._runner.cache.save(request.slot, places)
