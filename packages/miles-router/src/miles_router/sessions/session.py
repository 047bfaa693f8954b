"""One session: what was pinned when it was created, its turns, and the requests on their way."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pydantic import Field

from miles_core.config import Config
from miles_router.sessions.attempt import Attempt
from miles_router.sessions.tree import TurnTree


class PinnedSampling(Config):
    """Sampling that a session fixes; what is None is left to each request."""

    temperature: float | None = Field(default=None, ge=0)
    """Divides the logits; 0 is greedy."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Nucleus mass."""
    top_k: int | None = Field(default=None, ge=-1)
    """Candidates kept; -1 turns it off."""
    max_tokens: int | None = Field(default=None, gt=0)
    """Most tokens of one turn; the smaller of this and the request's."""


class SessionSpec(Config):
    """The body of `POST /sessions`; everything is optional."""

    sampling: PinnedSampling = Field(default_factory=PinnedSampling)
    """What requests cannot change."""
    seed: int | None = Field(default=None, ge=0)
    """Root of the turns' seeds; None draws one, or uses a request's own."""
    max_seq_len: int | None = Field(default=None, gt=0)
    """Most tokens of a trajectory."""
    tools: tuple[Mapping[str, Any], ...] | None = None
    """Tool schemas for requests that bring none."""
    metadata: Mapping[str, Any] = Field(default_factory=dict)
    """JSON values; returned with the session and in its samples under "session"."""


@dataclass(eq=False, slots=True)
class Session:
    """State of one session. Only its service changes it, in steps that never wait."""

    session_id: str
    spec: SessionSpec
    seed: int
    tree: TurnTree
    used_at: float
    created_at: datetime
    """The clock that templates see in all of the session's prompts."""
    attempts: dict[str, Attempt] = field(default_factory=dict)
    """The latest attempt by the request's fingerprint."""
    keyed: dict[str, Attempt] = field(default_factory=dict)
    """Attempts by Idempotency-Key."""
    running: set[Attempt] = field(default_factory=set)
    failed: int = 0
    """Attempts of which no turn came."""
    nbytes: int = 0
    """About what its turns take in memory."""
    ended: bool = False
    """True when it was deleted or has expired; nothing of it is recorded any more."""
    damaged: str | None = None
    """What is missing of it since it came back from a damaged log."""
