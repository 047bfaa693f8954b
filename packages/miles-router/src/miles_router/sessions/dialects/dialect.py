"""What a dialect is: it reads requests, writes answers whole or streamed, and words failures."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from miles_router.sessions.attempt import Attempt
from miles_router.sessions.request import TurnRequest
from miles_router.sessions.session import Session
from miles_router.sessions.tree import Turn
from miles_tito import ChatTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFacts:
    """What an answer says besides its turn. model: the name of the model in answers."""

    session: Session
    chat: ChatTokenizer
    model: str


class Asked(Protocol):
    """A checked request, which knows how its answer is written."""

    @property
    def turn(self) -> TurnRequest:
        """What the session engine needs of it."""

    def whole(self, turn: Turn, facts: AnswerFacts) -> Mapping[str, Any]:
        """The answer as one JSON object."""

    def events(self, attempt: Attempt, facts: AnswerFacts) -> AsyncIterator[bytes]:
        """The answer as server-sent events while it comes; a failure on the way is an event too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failure to be told. param: the field it is about. code: the dialect's own name for it, if it has one."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    request_id: str | None = None


class Dialect(Protocol):
    """One wire format. ping: the event that keeps a silent stream open."""

    name: str
    ping: bytes
    request_id_header: str

    def read(self, body: bytes, session: Session) -> Asked:
        """The request in a body; SessionError 400 names the field, what was expected and what was found."""

    def error(self, failure: Failure) -> Mapping[str, Any]:
        """The body of an answer that tells a failure."""

    def model(self, name: str) -> Mapping[str, Any]:
        """One entry of the list of models."""

    def models(self, name: str) -> Mapping[str, Any]:
        """The list of models, which has one entry."""
