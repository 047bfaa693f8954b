"""What happens to sessions, written to their log when there is one."""

import logging
from collections.abc import Sequence

from miles_core.errors import SessionError
from miles_router.sessions.attempt import Attempt
from miles_router.sessions.log.frames import Damage, session_hash
from miles_router.sessions.log.records import Kind
from miles_router.sessions.log.segments import Recovered
from miles_router.sessions.log.shards import ShardedLog
from miles_router.sessions.matchers import Matcher
from miles_router.sessions.recording import opened_fields, restore_sessions, turn_fields
from miles_router.sessions.session import Session
from miles_router.sessions.tree import Turn
from miles_tito import ChatTokenizer

logger = logging.getLogger(__name__)


class Journal:
    """The log of the sessions of one process; without a log every call does nothing."""

    def __init__(self, log: ShardedLog | None) -> None:
        self.log = log

    def owns(self, session_id: str) -> bool:
        """Whether the session would be in this process."""
        return self.log is None or self.log.shard_of(session_id) in self.log.held

    def opened(self, session: Session) -> int:
        """A session begins; its position for `durable`."""
        if self.log is None:
            return 0
        return self.log.append(Kind.OPENED, session.session_id, opened_fields(session))

    def turn(self, session: Session, turn: Turn, *, fingerprint: str, keys: Sequence[str]) -> int:
        """A turn is recorded; its position for `durable`. SessionError 507 when it cannot be."""
        if session.ended:
            raise SessionError("the session was deleted.", status=404)
        if self.log is None:
            return 0
        fields, arrays = turn_fields(session, turn, fingerprint=fingerprint, keys=keys)
        return self.log.append(Kind.TURN, session.session_id, fields, arrays)

    async def durable(self, session: Session, position: int) -> None:
        """Return when the record at this position is as safe as the log was told to make it."""
        if self.log is not None:
            await self.log.durable(session.session_id, position)

    def delivery(self, session: Session, attempt: Attempt, took: bool) -> None:
        """A caller took the answer, or the last one left without it."""
        if attempt.turn is not None:
            self._try(Kind.DELIVERY, session, {"turn": attempt.turn.number, "took": took})

    def key(self, session: Session, turn: Turn, key: str) -> None:
        """One more Idempotency-Key names a recorded turn."""
        self._try(Kind.KEY, session, {"turn": turn.number, "key": key})

    def failed(self, session: Session) -> None:
        """An attempt ended without a turn."""
        self._try(Kind.FAILED, session, {})

    def ended(self, session: Session) -> None:
        """The session is deleted or has expired."""
        self._try(Kind.ENDED, session, {})
        session.ended = True

    async def acquire(self, shard: int, chat: ChatTokenizer, matcher: Matcher) -> list[Session]:
        """Own a shard; the sessions in it."""
        assert self.log is not None

        def restore(found: Recovered) -> list[Session]:
            restored = restore_sessions(found.records, chat, matcher, on_delivery=self.delivery)
            for lost in restored.lost:
                logger.error("session log, shard %d: %s.", shard, lost)
            _mark(restored.sessions, found.damage)
            return restored.sessions

        return await self.log.acquire(shard, restore)

    def _try(self, kind: Kind, session: Session, fields: dict[str, object]) -> None:
        """Write what no caller waits for. Losing it costs no token, so a full disk does not fail the call."""
        if self.log is None or session.ended or not self.owns(session.session_id):
            return
        try:
            self.log.append(kind, session.session_id, fields)
        except SessionError as error:
            logger.error("session %s: %s is not recorded: %s", session.session_id, kind, error)  # noqa: TRY400


def _mark(sessions: Sequence[Session], damage: Sequence[Damage]) -> None:
    """Sessions of which a record was damaged say so, the last one included, after which no gap is seen."""
    hurt = {each.session: each.reason for each in damage if each.session is not None}
    for session in sessions:
        reason = hurt.get(session_hash(session.session_id))
        if reason is not None and session.damaged is None:
            session.damaged = f"the log holds {reason} of it"
