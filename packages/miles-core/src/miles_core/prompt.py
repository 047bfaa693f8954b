"""One prompt of a data set, and how a rollout of it is sampled."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from miles_core.config import Config
from miles_core.errors import RecordError
from miles_core.messages import check_messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Messages to start from, and what the reward needs to judge the outcome.

    prompt_id: unique over the whole run, stable across resume: `"{epoch}-{row}"` from the JSONL source.
    label: the expected answer, if the data set has one. tools: OpenAI tool schemas offered to the model.
    metadata: JSON values for the agent and the reward; `timeout_s`, if there, is the deadline of its rollouts.
    """

    prompt_id: str
    messages: tuple[Mapping[str, Any], ...]
    label: Any = None
    tools: tuple[Mapping[str, Any], ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.messages:
            raise RecordError(f"prompt {self.prompt_id}: expected at least one message, found none.")
        check_messages(self.messages)
        own = self.metadata.get("timeout_s")
        if own is not None and (isinstance(own, bool) or not isinstance(own, int | float) or not 0 < own < math.inf):
            raise RecordError(
                f"prompt {self.prompt_id}: metadata.timeout_s: expected a positive number of seconds, found {own!r}."
            )

    @property
    def timeout_s(self) -> float | None:
        """The deadline of this prompt's rollouts in seconds, where it has one of its own."""
        own = self.metadata.get("timeout_s")
        return None if own is None else float(own)


class SamplingConfig(Config):
    """How the policy is sampled; a session pins these, so an agent cannot change the distribution that is trained."""

    temperature: float = Field(1.0, gt=0)
    """Divides the logits; recorded log-probabilities are those of the divided logits."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus mass; 1 turns it off."""
    top_k: int = Field(-1, ge=-1)
    """Candidates kept; -1 turns it off."""
    max_tokens: int = Field(256, gt=0)
    """Most tokens of one turn; a smaller `max_tokens` of the agent's request wins."""
