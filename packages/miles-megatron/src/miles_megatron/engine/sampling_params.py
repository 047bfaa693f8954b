"""How one request is sampled and where it stops, checked."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from miles_core.errors import EngineError

DEFAULT_MAX_NEW_TOKENS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """temperature 0 is greedy, with the log-probabilities of the logits themselves; top_k -1 and top_p 1 are off.

    stop_token_ids stop besides the model's own; ignore_eos ignores the model's own only. sampling_seed None draws one.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    sampling_seed: int | None = None
    ignore_eos: bool = False
    n: int = 1

    def __post_init__(self) -> None:
        _want(
            _number(self.temperature) and self.temperature >= 0, "temperature", "a number, 0 or more", self.temperature
        )
        _want(_number(self.top_p) and 0 < self.top_p <= 1, "top_p", "a number in (0, 1]", self.top_p)
        _want(_whole(self.top_k) and (self.top_k == -1 or self.top_k > 0), "top_k", "-1 or above 0", self.top_k)
        _want(_whole(self.max_new_tokens) and self.max_new_tokens > 0, "max_new_tokens", "above 0", self.max_new_tokens)
        _want(_whole(self.n) and 0 < self.n <= 1024, "n", "from 1 to 1024", self.n)
        seed = self.sampling_seed
        _want(seed is None or (_whole(seed) and abs(seed) < 1 << 64), "sampling_seed", "a 64-bit integer", seed)
        _want(isinstance(self.ignore_eos, bool), "ignore_eos", "true or false", self.ignore_eos)
        _want(all(isinstance(s, str) and s for s in self.stop), "stop", "non-empty strings", self.stop)
        _want(all(_whole(i) for i in self.stop_token_ids), "stop_token_ids", "integers", self.stop_token_ids)

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> Self:
        """From SGLang's `sampling_params`; EngineError with status 400 for a value or a key that is not supported."""
        known = {f.name for f in fields(cls)}
        values: dict[str, Any] = {}
        for name, value in body.items():
            if name in NEUTRAL and value in NEUTRAL[name]:
                continue
            if name not in known:
                raise EngineError(f"sampling_params.{name}: this engine does not support it; leave it out.", status=400)
            if value is not None:
                values[name] = value
        if isinstance(values.get("stop"), str):
            values["stop"] = (values["stop"],)
        for name in ("stop", "stop_token_ids"):
            if name in values:
                _want(isinstance(values[name], list | tuple), name, "a list", values[name])
                values[name] = tuple(values[name])
        return cls(**values)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken."""
        return self.temperature == 0 or self.top_k == 1

    @property
    def filtered(self) -> bool:
        """Whether some tokens are excluded."""
        return not self.greedy and (self.top_k > 0 or self.top_p < 1)


NEUTRAL: Mapping[str, Sequence[Any]] = {
    "min_p": (0, 0.0, None),
    "frequency_penalty": (0, 0.0, None),
    "presence_penalty": (0, 0.0, None),
    "repetition_penalty": (1, 1.0, None),
    "min_new_tokens": (0, None),
    "skip_special_tokens": (True, None),
    "spaces_between_special_tokens": (True, None),
    "no_stop_trim": (False, None),
    "logit_bias": ({}, None),
    "json_schema": (None,),
    "regex": (None,),
    "ebnf": (None,),
}
"""Parameters that SGLang knows and this engine does not, and the values that ask for nothing."""


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _want(holds: bool, name: str, expected: str, found: object) -> None:
    if not holds:
        raise EngineError(f"sampling_params.{name}: expected {expected}, found {found!r}.", status=400)
