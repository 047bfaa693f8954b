"""What the session server can be told."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, Strict, field_validator

from miles_core.config import Config
from miles_router.sessions.log.config import LogConfig
from miles_router.urls import worker_url


class SessionServerConfig(Config):
    """Options of one session server."""

    engine_url: str
    """Base URL of the router, or of one engine: the server calls `/generate` and `/model_info` there."""
    model_dir: Annotated[Path, Strict(False)]
    """Folder with the tokenizer and its chat template."""
    token: str | None = None
    """Bearer token that every call must carry (an OpenAI client's `api_key`); None lets everyone in."""
    engine_token: str | None = None
    """Bearer token for `engine_url`."""
    model_name: str = "policy"
    """The `model` of answers; requests may name any."""
    template_kwargs: Mapping[str, Any] = Field(default_factory=dict)
    """Arguments of the chat template, the same for every render of every session."""
    matcher: str = "loose_tool_call"
    """How a request's history is compared with recorded turns: `loose_tool_call`, `strict`, `role_content`, or
    `module:attribute`."""
    after_length: Literal["branch", "close", "refuse"] = "branch"
    """What a request does that continues a turn cut off by its length: start a new trajectory whose history is all
    prompt; go on in the same one after masked end-of-turn tokens; or get 409."""
    keep_retries: bool = False
    """Also make samples of answers that a later answer to the same request superseded."""
    context_length: int | None = Field(default=None, gt=0)
    """Tokens that fit prompt and answer; None asks the engine."""
    context_margin: int = Field(default=0, ge=0)
    """Further tokens to leave free. What SGLang keeps for itself is known from its report, unless `context_length` is
    given; then set 6 here."""
    ttl_s: float = Field(default=3600.0, gt=0)
    """A session without a call for this long is deleted."""
    sweep_s: float = Field(default=10.0, gt=0)
    """Time between two looks for expired sessions."""
    max_sessions: int = Field(default=100_000, gt=0)
    """Sessions held at once; creating one more is answered 429."""
    max_turns: int = Field(default=1000, gt=0)
    """Turns recorded in one session; one more is answered 409."""
    max_session_bytes: int = Field(default=1 << 30, gt=0)
    """About what the turns of one session may take in memory; one more is answered 409."""
    max_total_bytes: int | None = Field(default=None, gt=0)
    """The same for all sessions together; a new session or turn is answered 429."""
    samples_per: Literal["leaf", "turn"] = "leaf"
    """One sample for each trajectory, or one for each turn with all before it masked."""
    sample_picker: str = "leaves"
    """Which trajectories become samples: `leaves`, `all_leaves`, `longest_leaf`, or `module:attribute`."""
    sample_processors: tuple[str, ...] = ()
    """What samples go through before they are handed out, each as `module:attribute`."""
    plugin_timeout_s: float = Field(default=30.0, gt=0)
    """Longest a picker or processor may take; then the samples are answered 422."""
    return_routed_experts: bool = False
    """Ask the engine for the experts that each token was sent to, and keep them for the samples."""
    experts_top_k: int | None = Field(default=None, gt=0)
    """Experts of a token in a layer; None reads it from the model's `config.json`."""
    experts_dtype: Literal["int32", "int16", "uint8"] = "int32"
    """How the engine writes them."""
    log: LogConfig | None = None
    """The log of all sessions on disk; None keeps them in memory alone."""
    shards_on_demand: bool = False
    """Own no part of the log until told which; for a process that shares the sessions with others."""
    answer_timeout_s: float = Field(default=600.0, gt=0)
    """Longest the engine may stay silent."""
    ping_s: float = Field(default=15.0, gt=0)
    """A stream that is silent for this long gets a ping, so that nothing between closes it."""
    body_limit_bytes: int = Field(default=64 << 20, gt=0)
    """Largest request body; a larger one is answered 413."""

    @field_validator("engine_url")
    @classmethod
    def _url(cls, url: str) -> str:
        return worker_url(url)
