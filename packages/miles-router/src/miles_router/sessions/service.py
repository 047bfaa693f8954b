"""The session service, without a web framework: a turn is planned, sampled, and recorded.

Planning and recording run to their end on the event loop without waiting, so a session is never seen half changed;
the long call to the engine lies between them and holds nothing. Assembly of samples reads what is recorded, in a
thread. With a log, whatever a caller was told can be told again by the next process.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from miles_core.errors import MilesError, SessionError
from miles_core.sample import Sample
from miles_router.sessions.assembly import Assembler
from miles_router.sessions.attempt import Attempt
from miles_router.sessions.config import SessionServerConfig
from miles_router.sessions.context import Limits, engine_limits, limits_of
from miles_router.sessions.engine import EngineClient
from miles_router.sessions.journal import Journal
from miles_router.sessions.log.shards import ShardedLog
from miles_router.sessions.matchers import Matcher
from miles_router.sessions.plan import plan_turn, prompt_tokens
from miles_router.sessions.report import describe
from miles_router.sessions.request import TurnRequest
from miles_router.sessions.session import Session, SessionSpec
from miles_router.sessions.store import SessionStore
from miles_router.sessions.turns import TurnRunner
from miles_tito import ChatTokenizer

RETRY_GRACE_S = 0.03
"""How long a request waits that is the same as one under way, to see whether that one's caller has left."""


class SessionService:
    """Sessions in front of one engine URL. Methods run on one event loop; `close` ends everything it started."""

    def __init__(
        self,
        config: SessionServerConfig,
        chat: ChatTokenizer,
        engine: EngineClient,
        *,
        matcher: Matcher,
        assembler: Assembler,
        log: ShardedLog | None = None,
    ) -> None:
        self.config = config
        self.chat = chat
        self._engine = engine
        self._found_limits = None if config.context_length is None else limits_of(config.context_length)
        self._matcher = matcher
        self.journal = Journal(log)
        self.store = SessionStore(
            ttl_s=config.ttl_s,
            max_sessions=config.max_sessions,
            max_bytes=config.max_total_bytes,
            matcher=self._matcher,
            owns=self.journal.owns,
        )
        self._runner = TurnRunner(chat, engine, self.store, self.journal)
        self._assembler = assembler

    async def open(self) -> None:
        """Read the whole log, unless the parts of it that are this process's are still to be named."""
        if self.journal.log is not None and not self.config.shards_on_demand:
            for shard in range(self.journal.log.num_shards):
                await self.acquire(shard)

    async def acquire(self, shard: int) -> int:
        """Take over a shard of the log with the sessions in it; their number. SessionError 423 while it is owned."""
        sessions = await self.journal.acquire(shard, self.chat, self._matcher)
        for session in sessions:
            self.store.add(session)
        self.drop_expired()
        return len(sessions)

    async def release(self, shard: int) -> None:
        """Give a shard up with its sessions; SessionError 409 while one of them is at work."""
        log = self.journal.log
        if log is None or shard not in log.held:
            return
        sessions = [s for s in self.store.all() if log.shard_of(s.session_id) == shard]
        if any(session.running for session in sessions):
            raise SessionError(f"a session in shard {shard} is at work.", status=409)
        for session in sessions:
            self.store.drop(session)
        await log.release(shard)

    async def create(self, spec: SessionSpec) -> Session:
        """A new session; expired ones go first when a cap is reached. It is in the log when this returns."""
        full = len(self.store) >= self.config.max_sessions
        if full or (self.config.max_total_bytes is not None and self.store.nbytes >= self.config.max_total_bytes):
            self.drop_expired()
        session = self.store.create(spec)
        try:
            await self.journal.durable(session, self.journal.opened(session))
        except MilesError:
            self.store.drop(session)
            raise
        return session

    async def start(
        self, session_id: str, request: TurnRequest, *, key: str | None = None, retry: bool = False
    ) -> Attempt:
        """Begin a turn, or join the attempt that the same request made before. The caller must `leave` it.

        key: Idempotency-Key; the same key gives the same turn. retry: the client says that it sends the request again.
        An identical request also joins an attempt whose caller left before it had the answer.
        """
        limits = await self._limits()
        await _settled(self.store.get(session_id).attempts.get(request.fingerprint))
        session = self.store.get(session_id)
        if earlier := _earlier(session, request, key, retry):
            self._name(session, earlier, key)
            earlier.join()
            return earlier
        self._check_room(session)
        plan = plan_turn(session, request, self.chat, self.config, limits=limits)
        attempt = Attempt(
            request.fingerprint,
            plan.turn_id,
            prompt_tokens=len(plan.prompt_ids),
            on_delivery=partial(self.journal.delivery, session),
        )
        attempt.join()
        session.attempts[request.fingerprint] = attempt
        if key is not None:
            session.keyed[key] = attempt
        session.running.add(attempt)
        attempt.task = asyncio.create_task(self._runner.run(session, request, plan, attempt))
        return attempt

    def count_tokens(self, session_id: str, request: TurnRequest) -> int:
        """Tokens of the prompt that the request would be sampled after; nothing is recorded."""
        return prompt_tokens(self.store.get(session_id), request, self.chat, self.config)

    async def samples(self, session_id: str, *, prompt_id: str, rollout_id: str) -> list[Sample]:
        """The session's training samples; SessionError 422 when they cannot be assembled."""
        return await self._assembler.samples(self.store.get(session_id), prompt_id=prompt_id, rollout_id=rollout_id)

    async def describe(self, session_id: str) -> Mapping[str, Any]:
        """Turns, tree and mismatch report as JSON."""
        session = self.store.get(session_id)
        return await asyncio.to_thread(describe, session, tuple(session.tree.turns), self.chat)

    async def delete(self, session_id: str) -> None:
        """Forget the session and end what runs in it; SessionError 404 when there is none."""
        session = self.store.remove(session_id)
        self.journal.ended(session)
        await self._end(session, SessionError("the session was deleted.", status=404))

    def drop_expired(self) -> int:
        """Forget the sessions that nobody came back to; their number."""
        expired = self.store.expired()
        for session in expired:
            self.store.drop(session)
            self.journal.ended(session)
        return len(expired)

    async def tend(self) -> None:
        """Drop expired sessions and look after the log for ever; cancel to end."""
        if self.journal.log is None:
            await self._sweep()
        else:
            await asyncio.gather(self._sweep(), self.journal.log.tend())

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self.config.sweep_s)
            self.drop_expired()

    async def close(self) -> None:
        """End every running turn, the engine's connections and the log."""
        for session in self.store.all():
            await self._end(session, SessionError("the session server is stopping.", status=503))
        await self._engine.close()
        if self.journal.log is not None:
            await self.journal.log.close()

    async def _end(self, session: Session, reason: SessionError) -> None:
        running = list(session.running)
        for attempt in running:
            attempt.fail(reason)
            if attempt.task is not None:
                attempt.task.cancel()
        for attempt in running:
            if attempt.task is not None:
                with suppress(asyncio.CancelledError):
                    await attempt.task

    def _name(self, session: Session, attempt: Attempt, key: str | None) -> None:
        """Let a further Idempotency-Key stand for the attempt."""
        if key is None or key in session.keyed:
            return
        session.keyed[key] = attempt
        if attempt.turn is not None:
            self.journal.key(session, attempt.turn, key)

    async def _limits(self) -> Limits:
        if self._found_limits is None:
            self._found_limits = await engine_limits(self._engine, self.config.model_dir)
        return self._found_limits.less(self.config.context_margin)

    def _check_room(self, session: Session) -> None:
        """SessionError 409 or 429 when one more turn would be too much."""
        if session.nbytes >= self.config.max_session_bytes:
            raise SessionError(
                f"the session holds {session.nbytes} bytes, the limit is {self.config.max_session_bytes}.", status=409
            )
        self.store.check_bytes()


async def _settled(twin: Attempt | None) -> None:
    """Give the end of an identical request's connection a moment to be noticed.

    A caller that drops its connection and comes back at once can be heard before its leaving is.
    """
    tries = 0 if twin is None else 10
    while tries and twin is not None and not twin.done and not twin.abandoned:
        tries -= 1
        await asyncio.sleep(RETRY_GRACE_S / 10)


def _earlier(session: Session, request: TurnRequest, key: str | None, retry: bool) -> Attempt | None:
    """The attempt that this request repeats, if any."""
    keyed = session.keyed.get(key) if key is not None else None
    if keyed is not None:
        if keyed.fingerprint != request.fingerprint:
            raise SessionError("this Idempotency-Key was used with another request.", status=409)
        return keyed
    twin = session.attempts.get(request.fingerprint)
    if twin is not None and (twin.abandoned or retry) and twin.error is None:
        return twin
    return None
