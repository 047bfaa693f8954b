"""One generation: what was asked, and how far it is."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from miles_megatron.engine.sampling_params import SamplingParams


class FinishKind(StrEnum):
    """Why a generation ended, in SGLang's words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class FinishReason:
    """matched: the stop token or stop string. message: why an aborted one was aborted."""

    kind: FinishKind
    matched: int | str | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A generation so far; the last one of a request has its `finish`.

    output_ids, logprobs: `[completion_tokens]`, from the first output token on. weight_versions: runs of
    (version, tokens) over them. weight_version: the engine's when this was made.
    """

    rid: str
    output_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    weight_versions: tuple[tuple[str, int], ...]
    prompt_tokens: int
    cached_tokens: int
    weight_version: str
    finish: FinishReason | None


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """State of a generation; only the engine's own thread changes it.

    tokens: prompt and output. computed: how many of them have keys and values in `slot`. epoch: of the weights that
    wrote those, None when several did. page_digests: of the full pages of `tokens`, as far as they were needed.
    """

    rid: str
    prompt_tokens: int
    tokens: list[int]
    params: SamplingParams
    seed: int
    limit: int
    """Most tokens in all."""
    deliver: Callable[[Completion], None]
    stream: bool = False
    logprobs: list[float] = field(default_factory=list)
    versions: list[tuple[str, int]] = field(default_factory=list)
    slot: int = -1
    computed: int = 0
    cached_tokens: int = 0
    admissions: int = 0
    epoch: int | None = None
    page_digests: list[bytes] = field(default_factory=list)

    @property
    def output_ids(self) -> list[int]:
        """Tokens sampled so far."""
        return self.tokens[self.prompt_tokens :]

    @property
    def num_outputs(self) -> int:
        """How many tokens were sampled so far."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def decoding(self) -> bool:
        """Whether all tokens but the last are in the cache."""
        return self.computed == len(self.tokens) - 1 and self.num_outputs > 0

    def append(self, token: int, logprob: float, version: str) -> None:
        """Take a token sampled under `version`."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if self.versions and self.versions[-1][0] == version:
            self.versions[-1] = (version, self.versions[-1][1] + 1)
        else:
            self.versions.append((version, 1))

    def completion(self, version: str, finish: FinishReason | None) -> Completion:
        """What the caller gets now; `version` is the engine's."""
        return Completion(
            rid=self.rid,
            output_ids=tuple(self.output_ids),
            logprobs=tuple(self.logprobs),
            weight_versions=tuple(self.versions),
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            weight_version=version,
            finish=finish,
        )
