"""What the engine sampled in one turn, read from its answer and checked: ids, log-probabilities, versions, experts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from miles_core.errors import EngineError
from miles_router.sessions.experts import ExpertsFormat
from miles_router.versions import LARGEST, weight_version

LARGEST_ID = (1 << 31) - 1
"""Token ids are kept in 32 bits, with a sign."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What the engine sampled in one turn: all arrays are per id, log-probabilities natural.

    finish: "stop" or "length". matched: the stop id or text. counters: numbers of `meta_info`. routing: experts
    `[rows, layers, top_k]` of the positions from `first_row` to the one before the last id, or None.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    weight_versions: tuple[int, ...]
    finish: str
    matched: int | str | None = None
    cached_tokens: int = 0
    counters: Mapping[str, Any] = field(default_factory=dict)
    routing: NDArray[Any] | None = field(default=None, compare=False)
    first_row: int = 0

    @property
    def stop_text(self) -> str | None:
        """The stop text that ended the answer, if one did."""
        return self.matched if self.finish == "stop" and isinstance(self.matched, str) else None


@dataclass(frozen=True, slots=True)
class Piece:
    """Ids that a stream added, with their log-probabilities and the version that the engine named with them."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    version: int | None


def read_generation(
    answer: Any,
    *,
    experts: ExpertsFormat | None = None,
    first_row: int = 0,
    prompt_tokens: int = 0,
    versions: Sequence[int] | None = None,
) -> Generation:
    """Check an answer of `/generate` and take what a turn needs; EngineError 502 when tokens cannot be proved.

    experts: how the engine writes routed experts, which are then required; rows before `first_row` are left out.
    versions: those under which a stream brought the ids, for an engine that does not say it of each id itself.
    """
    piece = read_piece(answer, 0)
    meta = answer["meta_info"]
    finish, matched = _finish(meta.get("finish_reason"))
    if versions is None or "token_weight_versions" in meta:
        versions = _versions(len(piece.ids), meta)
    routing = None
    if experts is not None:
        routing = experts.read(meta.get("routed_experts"), rows=prompt_tokens + len(piece.ids) - 1)[first_row:].copy()
    return Generation(
        ids=piece.ids,
        logprobs=piece.logprobs,
        weight_versions=tuple(versions),
        finish=finish,
        matched=matched,
        cached_tokens=meta["cached_tokens"] if type(meta.get("cached_tokens")) is int else 0,
        counters={k: v for k, v in meta.items() if type(v) is float or (type(v) is int and abs(v) <= LARGEST)},
        routing=routing,
        first_row=first_row,
    )


def read_piece(answer: Any, start: int) -> Piece:
    """The checked output ids from `start` on, with their log-probabilities."""
    if isinstance(answer, dict) and "error" in answer:
        raise EngineError(f"the engine reports: {answer['error']}.", status=502)
    if not isinstance(answer, dict) or not isinstance(answer.get("meta_info"), dict):
        raise EngineError("expected an object with meta_info from the engine, found something else.", status=502)
    meta = answer["meta_info"]
    _finish(meta.get("finish_reason"))
    ids = answer.get("output_ids")
    entries = meta.get("output_token_logprobs") or []
    if not isinstance(ids, list) or not all(type(i) is int and 0 <= i <= LARGEST_ID for i in ids[start:]):
        raise EngineError(f"expected output_ids as a list of integers from 0 to {LARGEST_ID}.", status=502)
    if not isinstance(entries, list) or len(entries) != len(ids):
        raise EngineError(
            f"expected one log-probability per output id, found {len(entries)} for {len(ids)} ids.", status=502
        )
    return Piece(
        tuple(ids[start:]), _logprobs(ids[start:], entries[start:]), weight_version(meta.get("weight_version"))
    )


def finished(generation: Generation) -> Generation:
    """The generation, or EngineError 502 when it broke off or holds no token."""
    if not generation.finish:
        raise EngineError("the engine ended its answer without a finish reason.", status=502)
    if not generation.ids:
        raise EngineError("the engine answered without a token.", status=502)
    return generation


def _finish(reason: Any) -> tuple[str, int | str | None]:
    if reason is None:
        return "", None
    kind = reason.get("type") if isinstance(reason, dict) else reason
    if kind == "abort":
        message = reason.get("message") if isinstance(reason, dict) else None
        raise EngineError(f"the engine aborted the answer: {message or 'no reason given'}.", status=502)
    if kind not in ("stop", "length"):
        raise EngineError(f"expected a finish reason among stop, length, abort, found {kind!r}.", status=502)
    matched = reason.get("matched") if isinstance(reason, dict) else None
    if (type(matched) is int and not 0 <= matched <= LARGEST_ID) or not isinstance(matched, int | str | None):
        raise EngineError(f"expected the matched stop as a token or a text, found {str(matched)[:100]!r}.", status=502)
    return kind, matched if matched != "" else None  # an empty text ends nothing


def _logprobs(ids: Sequence[int], entries: Sequence[Any]) -> tuple[float, ...]:
    values = []
    for token, entry in zip(ids, entries, strict=True):
        value = entry[0] if isinstance(entry, list) and len(entry) >= 2 and entry[1] == token else None
        if not isinstance(value, float | int) or not math.isfinite(value) or value > 1e-6:
            raise EngineError(f"expected [log-probability, {token}, ...] from the engine, found {entry!r}.", status=502)
        values.append(float(value))
    return tuple(values)


def _versions(count: int, meta: Mapping[str, Any]) -> tuple[int, ...]:
    runs = meta.get("token_weight_versions")
    if runs is None:
        runs = [[meta.get("weight_version"), count]]
    if not isinstance(runs, list):
        raise EngineError(f"expected token_weight_versions as a list of runs, found {type(runs).__name__}.", status=502)
    versions: list[int] = []
    total = 0
    for run in runs:
        version = weight_version(run[0]) if isinstance(run, list) and len(run) == 2 else None
        if version is None or type(run[1]) is not int or run[1] < 0:
            found = repr(run)[:100]
            raise EngineError(f"expected the weight version of the tokens as a number, found {found}.", status=502)
        total += run[1]
        if total <= count:  # a run may claim any length
            versions += [version] * run[1]
    if total != count:
        raise EngineError(f"expected weight versions of {count} tokens, found {total}.", status=502)
    return tuple(versions)
