"""The sessions of one server: found by id, bounded in number, deleted when nobody comes back."""

import secrets
import time
from collections.abc import Callable
from datetime import datetime

from miles_core.errors import SessionError
from miles_router.sessions.matchers import Matcher
from miles_router.sessions.session import Session, SessionSpec
from miles_router.sessions.tree import TurnTree


class SessionStore:
    """Sessions by id. ttl_s: a session without calls for this long, and nothing running, is expired.

    max_bytes: about what the turns of all sessions together may take. owns: whether a session of this id would be here.
    """

    def __init__(
        self,
        *,
        ttl_s: float,
        max_sessions: int,
        matcher: Matcher,
        max_bytes: int | None = None,
        owns: Callable[[str], bool] = lambda _: True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._ttl_s = ttl_s
        self._max = max_sessions
        self._max_bytes = max_bytes
        self._owns = owns
        self.nbytes = 0
        self._matcher = matcher
        self._clock = clock
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def create(self, spec: SessionSpec) -> Session:
        """A new session; SessionError 429 at the cap."""
        if len(self._sessions) >= self._max:
            raise SessionError(f"{self._max} sessions are open, which is the limit; delete some.", status=429)
        self.check_bytes()
        seed = secrets.randbits(63) if spec.seed is None else spec.seed
        session = Session(
            session_id=self._free_id(),
            spec=spec,
            seed=seed,
            tree=TurnTree(self._matcher),
            used_at=self._clock(),
            created_at=datetime.now(),
        )
        self.add(session)
        return session

    def add(self, session: Session) -> None:
        """Take a session in."""
        self._sessions[session.session_id] = session
        self.nbytes += session.nbytes

    def grow(self, session: Session, nbytes: int) -> None:
        """Count what a turn takes."""
        session.nbytes += nbytes
        self.nbytes += nbytes

    def check_bytes(self) -> None:
        """SessionError 429 when the sessions take all the memory that they may."""
        if self._max_bytes is not None and self.nbytes >= self._max_bytes:
            raise SessionError(
                f"the sessions hold {self.nbytes} bytes, the limit is {self._max_bytes}; delete some.", status=429
            )

    def _free_id(self) -> str:
        for _ in range(100_000):
            session_id = secrets.token_hex(8)
            if self._owns(session_id):
                return session_id
        raise SessionError("this process holds no part of the sessions yet.", status=503)

    def get(self, session_id: str) -> Session:
        """The session, its life renewed; SessionError 404 when there is none."""
        session = self._sessions.get(session_id)
        if session is None and not self._owns(session_id):
            raise SessionError(f"session {session_id!r} belongs to another process.", status=421)
        if session is None:
            raise SessionError(f"session {session_id!r} is not known here; it was deleted or has expired.", status=404)
        self.touch(session)
        return session

    def touch(self, session: Session) -> None:
        """Count the session's idle time from now."""
        session.used_at = self._clock()

    def remove(self, session_id: str) -> Session:
        """Take the session out; SessionError 404 when there is none."""
        session = self.get(session_id)
        self.drop(session)
        return session

    def drop(self, session: Session) -> None:
        """Take a session out that is here."""
        del self._sessions[session.session_id]
        self.nbytes -= session.nbytes

    def expired(self) -> list[Session]:
        """Sessions that may go: idle past the deadline and with nothing running."""
        oldest = self._clock() - self._ttl_s
        return [s for s in self._sessions.values() if s.used_at < oldest and not s.running]

    def all(self) -> list[Session]:
        """Every session."""
        return list(self._sessions.values())
