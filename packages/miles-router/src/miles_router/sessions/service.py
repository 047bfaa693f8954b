"""The session service, without a web framework: a turn is planned, sampled, and recorded.

Planning and recording run to their end on the event loop without waiting, so a session is never seen half changed;
the long call to the engine lies between them and holds nothing. Assembly of samples reads what is recorded, in a
thread.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from miles_core.errors import EngineError, MilesError, RecordError, SessionError, TokenError
from miles_core.sample import Sample
from miles_router.sessions.attempt import Attempt
from miles_router.sessions.config import SessionServerConfig
from miles_router.sessions.context import context_length
from miles_router.sessions.engine import EngineClient, Generation
from miles_router.sessions.matchers import MATCHERS
from miles_router.sessions.plan import TurnPlan, plan_turn, prompt_tokens
from miles_router.sessions.report import describe
from miles_router.sessions.request import TurnRequest
from miles_router.sessions.samples import assemble
from miles_router.sessions.session import Session, SessionSpec
from miles_router.sessions.store import SessionStore
from miles_router.sessions.tree import Turn
from miles_tito import ChatTokenizer

RETRY_GRACE_S = 0.03
"""How long a request waits that is the same as one under way, to see whether that one's caller has left."""


class SessionService:
    """Sessions in front of one engine URL. Methods run on one event loop; `close` ends everything it started."""

    def __init__(self, config: SessionServerConfig, chat: ChatTokenizer, engine: EngineClient) -> None:
        self.config = config
        self.chat = chat
        self._engine = engine
        self._context: int | None = config.context_length
        self.store = SessionStore(
            ttl_s=config.ttl_s, max_sessions=config.max_sessions, matcher=MATCHERS[config.matcher]
        )

    def create(self, spec: SessionSpec) -> Session:
        """A new session; expired ones go first when the cap is reached."""
        if len(self.store) >= self.config.max_sessions:
            self.drop_expired()
        return self.store.create(spec)

    async def start(
        self, session_id: str, request: TurnRequest, *, key: str | None = None, retry: bool = False
    ) -> Attempt:
        """Begin a turn, or join the attempt that the same request made before. The caller must `leave` it.

        key: Idempotency-Key; the same key gives the same turn. retry: the client says that it sends the request again.
        An identical request also joins an attempt whose caller left before it had the answer.
        """
        context = await self._context_length()
        await _settled(self.store.get(session_id).attempts.get(request.fingerprint))
        session = self.store.get(session_id)
        if earlier := _earlier(session, request, key, retry):
            earlier.join()
            return earlier
        plan = plan_turn(session, request, self.chat, self.config, context=context)
        attempt = Attempt(request.fingerprint, plan.turn_id, prompt_tokens=len(plan.prompt_ids))
        attempt.join()
        session.attempts[request.fingerprint] = attempt
        if key is not None:
            session.keyed[key] = attempt
        session.running.add(attempt)
        attempt.task = asyncio.create_task(self._run(session, request, plan, attempt))
        return attempt

    def count_tokens(self, session_id: str, request: TurnRequest) -> int:
        """Tokens of the prompt that the request would be sampled after; nothing is recorded."""
        return prompt_tokens(self.store.get(session_id), request, self.chat, self.config)

    async def samples(self, session_id: str, *, prompt_id: str, rollout_id: str) -> list[Sample]:
        """The session's training samples; SessionError 422 when they cannot be assembled."""
        session = self.store.get(session_id)
        turns, failed = tuple(session.tree.turns), session.failed
        try:
            return await asyncio.to_thread(
                assemble,
                turns,
                self.chat,
                prompt_id=prompt_id,
                rollout_id=rollout_id,
                keep_retries=self.config.keep_retries,
                metadata={"session": dict(session.spec.metadata), "failed_turns": failed},
            )
        except (RecordError, TokenError) as error:
            raise SessionError(f"samples cannot be assembled: {error}", status=422) from error

    async def describe(self, session_id: str) -> Mapping[str, Any]:
        """Turns, tree and mismatch report as JSON."""
        session = self.store.get(session_id)
        return await asyncio.to_thread(describe, session, tuple(session.tree.turns), self.chat)

    async def delete(self, session_id: str) -> None:
        """Forget the session and end what runs in it; SessionError 404 when there is none."""
        await self._end(self.store.remove(session_id), "the session was deleted.")

    def drop_expired(self) -> int:
        """Forget the sessions that nobody came back to; their number."""
        expired = self.store.expired()
        for session in expired:
            self.store.remove(session.session_id)
        return len(expired)

    async def sweep(self) -> None:
        """Drop expired sessions for ever; cancel to end."""
        while True:
            await asyncio.sleep(self.config.sweep_s)
            self.drop_expired()

    async def close(self) -> None:
        """End every running turn and the engine's connections."""
        for session in self.store.all():
            await self._end(session, "the session server is stopping.")
        await self._engine.close()

    async def _end(self, session: Session, reason: str) -> None:
        running = list(session.running)
        for attempt in running:
            attempt.fail(SessionError(reason, status=404))
            if attempt.task is not None:
                attempt.task.cancel()
        for attempt in running:
            if attempt.task is not None:
                with suppress(asyncio.CancelledError):
                    await attempt.task

    async def _context_length(self) -> int:
        if self._context is None:
            self._context = await context_length(self._engine, self.config.model_dir)
        return self._context

    async def _run(self, session: Session, request: TurnRequest, plan: TurnPlan, attempt: Attempt) -> None:
        """Sample and record one planned turn; every way out settles the attempt."""
        try:
            generation = await self._generate(session, request, plan, attempt) if plan.room > 0 else None
            attempt.succeed(self._record(session, plan, generation, attempt))
        except MilesError as error:
            attempt.fail(error)
        except Exception as error:  # noqa: BLE001 - callers that wait must get an answer, whatever went wrong here
            attempt.fail(SessionError(f"the turn failed inside the server: {error!r}.", status=500))
        finally:
            attempt.fail(SessionError("the turn was cancelled.", status=404))
            session.running.discard(attempt)
            self.store.touch(session)
            if attempt.turn is None:
                self._forget(session, plan, attempt)

    async def _generate(self, session: Session, request: TurnRequest, plan: TurnPlan, attempt: Attempt) -> Generation:
        body = {
            "input_ids": plan.prompt_ids,
            "return_logprob": True,
            "sampling_params": {**plan.sampling, "stop_token_ids": list(self.chat.stop_token_ids)},
            "rid": f"{session.session_id}-{plan.turn_id}-{session.failed}",
        }
        if not request.stream:
            return await self._engine.generate(body, routing_key=session.session_id)
        parser = plan.transcript.stream_parser()
        async for part in self._engine.stream(body, routing_key=session.session_id):
            if isinstance(part, Generation):
                attempt.publish(parser.finish())
                return part
            attempt.publish(parser.feed(part.ids))
        raise EngineError("the engine ended its stream without an answer.", status=502)

    def _record(self, session: Session, plan: TurnPlan, generation: Generation | None, attempt: Attempt) -> Turn:
        """Add the turn to the tree; nothing waits in here."""
        transcript = plan.transcript
        message: Mapping[str, Any] = {"role": "assistant", "content": ""}
        if generation is not None:
            message = transcript.parse(generation.ids)
            transcript = transcript.sampled(
                generation.ids,
                message=message,
                logprobs=generation.logprobs,
                weight_versions=generation.weight_versions,
                finish=generation.finish,
            )
        turn = Turn(
            number=len(session.tree.turns),
            turn_id=plan.turn_id,
            parent=plan.parent,
            sibling=plan.sibling,
            depth=plan.depth,
            extends=plan.extends,
            end=plan.end,
            new_messages=plan.new_messages,
            dialect=plan.dialect,
            notes=plan.notes,
            message=message,
            tools=plan.tools,
            tools_key=plan.tools_key,
            keys=plan.keys,
            transcript=transcript,
            prompt_tokens=len(plan.prompt_ids),
            generation=generation,
            not_extendable=plan.not_extendable,
            delivered=not attempt.abandoned,
        )
        session.tree.record(turn)
        if plan.parent is not None:
            plan.parent.delivered = True
        return turn

    def _forget(self, session: Session, plan: TurnPlan, attempt: Attempt) -> None:
        """A failed attempt leaves nothing behind, so that the same request can be made again."""
        session.failed += 1
        session.tree.unclaim(plan.parent, plan.sibling)
        if session.attempts.get(attempt.fingerprint) is attempt:
            del session.attempts[attempt.fingerprint]
        for key in [key for key, other in session.keyed.items() if other is attempt]:
            del session.keyed[key]


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
