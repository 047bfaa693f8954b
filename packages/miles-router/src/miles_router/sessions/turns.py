"""Running one planned turn: the engine samples it, the log keeps it, the tree takes it in, its callers get it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from miles_core.errors import EngineError, MilesError, SessionError
from miles_router.sessions.alignment import digest_of
from miles_router.sessions.attempt import Attempt
from miles_router.sessions.engine import EngineClient
from miles_router.sessions.generation import Generation
from miles_router.sessions.journal import Journal
from miles_router.sessions.plan import TurnPlan
from miles_router.sessions.request import TurnRequest
from miles_router.sessions.session import Session
from miles_router.sessions.sizes import turn_bytes
from miles_router.sessions.stops import StopFilter, cut_message
from miles_router.sessions.store import SessionStore
from miles_router.sessions.tree import Turn
from miles_tito import ChatTokenizer


class TurnRunner:
    """Takes plans to recorded turns. What it records is in the log before any caller learns of it."""

    def __init__(self, chat: ChatTokenizer, engine: EngineClient, store: SessionStore, journal: Journal) -> None:
        self._chat = chat
        self._engine = engine
        self._store = store
        self._journal = journal

    async def run(self, session: Session, request: TurnRequest, plan: TurnPlan, attempt: Attempt) -> None:
        """Sample and record one planned turn; every way out settles the attempt."""
        recorded = False
        try:
            generation = await self._generate(session, request, plan, attempt) if plan.room > 0 else None
            turn = build_turn(session, plan, generation, delivered=not attempt.abandoned)
            keys = [key for key, other in session.keyed.items() if other is attempt]
            position = self._journal.turn(session, turn, fingerprint=attempt.fingerprint, keys=keys)
            self._take_in(session, turn)
            recorded = True
            await self._journal.durable(session, position)
            attempt.succeed(turn)
        except MilesError as error:
            attempt.fail(error)
        except Exception as error:  # noqa: BLE001 - callers that wait must get an answer, whatever went wrong here
            attempt.fail(SessionError(f"the turn failed inside the server: {error!r}.", status=500))
        finally:
            attempt.fail(SessionError("the turn was cancelled.", status=404))
            session.running.discard(attempt)
            self._store.touch(session)
            if not recorded:
                self._forget(session, plan, attempt)

    async def _generate(self, session: Session, request: TurnRequest, plan: TurnPlan, attempt: Attempt) -> Generation:
        body = {
            "input_ids": plan.prompt_ids,
            "return_logprob": True,
            "sampling_params": {**plan.sampling, "stop_token_ids": list(self._chat.stop_token_ids)},
            "rid": f"{session.session_id}-{plan.turn_id}-{session.failed}",
        }
        key, row = session.session_id, plan.first_row
        if not request.stream:
            return await self._engine.generate(body, routing_key=key, first_row=row)
        parser = plan.transcript.stream_parser()
        stops = StopFilter(request.stop)
        async for part in self._engine.stream(body, routing_key=key, first_row=row):
            if isinstance(part, Generation):
                attempt.publish(stops.feed(parser.finish()))
                attempt.publish(stops.finish(stopped=part.stop_text is not None))
                return part
            attempt.publish(stops.feed(parser.feed(part.ids)))
        raise EngineError("the engine ended its stream without an answer.", status=502)

    def _take_in(self, session: Session, turn: Turn) -> None:
        session.tree.record(turn)
        self._store.grow(session, turn_bytes(turn))
        if turn.parent is not None:
            turn.parent.delivered = True

    def _forget(self, session: Session, plan: TurnPlan, attempt: Attempt) -> None:
        """A failed attempt leaves nothing behind, so that the same request can be made again."""
        session.failed += 1
        self._journal.failed(session)
        session.tree.unclaim(plan.parent, plan.digest, sibling=plan.sibling, repeat=plan.repeat)
        if session.attempts.get(attempt.fingerprint) is attempt:
            del session.attempts[attempt.fingerprint]
        for key in [key for key, other in session.keyed.items() if other is attempt]:
            del session.keyed[key]


def build_turn(session: Session, plan: TurnPlan, generation: Generation | None, *, delivered: bool) -> Turn:
    """The turn that a plan and what was sampled make; nothing is changed."""
    transcript = plan.transcript
    message: Mapping[str, Any] = {"role": "assistant", "content": ""}
    if generation is not None:
        message = transcript.parse(generation.ids)
        if generation.stop_text is not None:
            message = cut_message(message, generation.stop_text)
        transcript = transcript.sampled(
            generation.ids,
            message=message,
            logprobs=generation.logprobs,
            weight_versions=generation.weight_versions,
            finish=generation.finish,
        )
        # One copy of the numbers for both.
        span = transcript.last.spans[0]
        generation = replace(generation, ids=span.ids, logprobs=span.logprobs, weight_versions=span.weight_versions)
    return Turn(
        number=session.tree.turns[-1].number + 1 if session.tree.turns else 0,
        turn_id=plan.turn_id,
        parent=plan.parent,
        sibling=plan.sibling,
        repeat=plan.repeat,
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
        digest=plan.digest,
        transcript=transcript,
        prompt_tokens=len(plan.prompt_ids),
        prompt_digest=digest_of(plan.prompt_ids),
        ids=plan.prompt_ids if generation is None else _followed_by(plan.prompt_ids, generation.ids),
        generation=generation,
        not_extendable=plan.not_extendable,
        delivered=delivered,
    )


def _followed_by(prompt: NDArray[np.int32], ids: Sequence[int]) -> NDArray[np.int32]:
    return np.concatenate([prompt, np.fromiter(ids, dtype=np.int32, count=len(ids))])
