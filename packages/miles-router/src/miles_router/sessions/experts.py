"""Routed experts: which experts a mixture-of-experts model chose for each position, as the engine sends them."""

import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from miles_core.errors import ConfigError, EngineError, SessionError

TOP_K_NAMES = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "top_k_experts")
"""Where model configurations keep the number of experts that a token is sent to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsFormat:
    """How `meta_info.routed_experts` is written: base64 of `[positions, layers, top_k]`, little-endian `dtype`."""

    top_k: int
    dtype: Literal["int32", "int16", "uint8"] = "int32"

    def read(self, payload: Any, *, rows: int) -> NDArray[Any]:
        """`[rows, layers, top_k]` in the smallest unsigned dtype that fits; EngineError 502 for anything else."""
        if not isinstance(payload, str):
            raise EngineError(
                "expected routed_experts in the engine's meta_info, found none; start the engine so that it returns "
                "them, or turn return_routed_experts off.",
                status=502,
            )
        try:
            data = binascii.a2b_base64(payload, strict_mode=True)
        except binascii.Error as error:
            raise EngineError(
                f"expected routed_experts as base64 from the engine, found {error}.", status=502
            ) from None
        dtype = np.dtype(self.dtype).newbyteorder("<")
        row = rows * self.top_k * dtype.itemsize
        if rows < 1 or not data or len(data) % row:
            raise EngineError(
                f"expected routed_experts of {rows} positions with {self.top_k} experts of {self.dtype} a layer, found "
                f"{len(data)} bytes.",
                status=502,
            )
        chosen = np.frombuffer(data, dtype=dtype).reshape(rows, len(data) // row, self.top_k)
        if chosen.min() < 0:
            raise EngineError("expected routed_experts of at least 0 from the engine, found less.", status=502)
        return chosen.astype(np.uint8 if chosen.max() < 256 else np.uint16 if chosen.max() < 65536 else np.uint32)


def experts_format(model_dir: Path, *, top_k: int | None, dtype: Literal["int32", "int16", "uint8"]) -> ExpertsFormat:
    """The format for a model. top_k: None takes it from the model's `config.json`; ConfigError where it is not."""
    if top_k is None:
        path = model_dir / "config.json"
        fields = json.loads(path.read_text()) if path.is_file() else {}
        fields = {**fields.get("text_config", {}), **fields}
        top_k = next((fields[name] for name in TOP_K_NAMES if isinstance(fields.get(name), int)), None)
    if top_k is None:
        raise ConfigError(
            f"return_routed_experts: expected one of {', '.join(TOP_K_NAMES)} in {model_dir}/config.json, found none; "
            "give experts_top_k."
        )
    return ExpertsFormat(top_k=top_k, dtype=dtype)


def join_experts(parts: Sequence[tuple[int, NDArray[Any] | None]], *, num_tokens: int) -> NDArray[Any] | None:
    """The experts of a whole trajectory, `[num_tokens - 1, layers, top_k]`.

    parts: first position and rows of each turn, in order. A turn's rows give way where the next turn's begin: there the
    template went on in another way than the sampled tokens did. None when no turn has any; SessionError 422 when only
    some have, or positions are missing.
    """
    present = [rows for _, rows in parts if rows is not None]
    if not present:
        return None
    if len(present) != len(parts):
        raise SessionError(
            f"samples cannot be assembled: {len(present)} of {len(parts)} turns have routed experts.", status=422
        )
    ends = [first for first, _ in parts[1:]] + [num_tokens - 1]
    kept = []
    covered = 0
    for (first, rows), end in zip(parts, ends, strict=True):
        if rows is None or first != covered or first + len(rows) < end:
            raise SessionError(
                f"samples cannot be assembled: routed experts of position {covered} on are missing.", status=422
            )
        kept.append(rows[: end - first])
        covered = end
    return np.concatenate(kept)
