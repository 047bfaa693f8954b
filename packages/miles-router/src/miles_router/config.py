"""What the router can be told."""

from pydantic import Field, field_validator

from miles_core.config import Config
from miles_router.middleware.table import MiddlewareConfig
from miles_router.policies.least_active import LeastActiveConfig
from miles_router.policies.table import PolicyConfig
from miles_router.urls import worker_url


class HealthConfig(Config):
    """How workers are judged, actively by probes and passively by the outcome of calls."""

    interval_s: float = Field(default=1.0, gt=0)
    """Time between two probes of a worker; a quarantined one is probed less often, up to `max_backoff_s`."""
    timeout_s: float = Field(default=5.0, gt=0)
    """Longest a probe may take."""
    max_backoff_s: float = Field(default=10.0, gt=0)
    """Longest time between two probes of a quarantined worker."""
    failures: int = Field(default=3, gt=0)
    """Consecutive failed probes, or consecutive failed calls, that put a worker in quarantine. A refused connection
    does so at once."""


class RouterConfig(Config):
    """Options of one router."""

    workers: tuple[str, ...] = ()
    """Base URLs of the engines to start with; `/add_worker` adds more."""
    token: str | None = None
    """Bearer token that every call must carry; None lets everyone in."""
    worker_token: str | None = None
    """Bearer token sent to the workers. With None a caller's own Authorization is passed on, unless it was ours."""
    policy: PolicyConfig = LeastActiveConfig()
    """Which of the workers that may take a call gets it."""
    middleware: tuple[MiddlewareConfig, ...] = ()
    """What stands around the proxied calls, the outermost first; without any, calls take the shortest way."""
    priority_head_start_s: float = Field(default=5.0, ge=0)
    """In the queue, a call of `X-Priority: n` is served as if it had come n times this much earlier."""
    interactive_bytes: int = Field(default=0, ge=0)
    """Calls with a body up to this size that name no priority have priority 1; 0 makes no such difference."""
    queue_timeout_s: float = Field(default=30.0, gt=0)
    """Longest a call waits for a worker before it is answered 503."""
    max_queue: int = Field(default=4096, ge=0)
    """Calls that may wait at once; one more is answered 503 at once."""
    max_active_per_worker: int = Field(default=0, ge=0)
    """Calls a worker gets at once; 0 sets no limit."""
    max_attempts: int = Field(default=3, gt=0)
    """Workers that are tried while no answer has started."""
    connect_timeout_s: float = Field(default=5.0, gt=0)
    """Longest a connection to a worker may take."""
    idle_timeout_s: float = Field(default=600.0, gt=0)
    """Longest a worker may stay silent, before its answer or within it."""
    head_timeout_s: float = Field(default=10.0, gt=0)
    """Longest a caller may take to send the head of a request."""
    body_timeout_s: float = Field(default=60.0, gt=0)
    """Longest a caller may pause within the body of a request, or in reading its answer."""
    keep_alive_s: float = Field(default=75.0, gt=0)
    """Longest a caller's connection is kept between two requests."""
    body_limit_bytes: int = Field(default=64 << 20, gt=0)
    """Largest request body; a larger one is answered 413."""
    replay_bytes: int = Field(default=1 << 20, ge=0)
    """Request bodies up to this size are kept until the answer starts, so that another worker can be tried."""
    health: HealthConfig = HealthConfig()

    @field_validator("workers")
    @classmethod
    def _urls(cls, workers: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(worker_url(url) for url in workers)
