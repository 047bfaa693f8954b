"""The model with its cache: everything of the engine that touches tensors. One thread owns it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from miles_core.errors import ConfigError
from miles_megatron.engine.cache import PAGE, CacheShape, SlotCache
from miles_megatron.engine.config import EngineConfig
from miles_megatron.engine.forward import Decoder, ModelDecoder, Piece, step
from miles_megatron.engine.fused import fuse
from miles_megatron.engine.sampler import Draw, sample
from miles_megatron.engine.scheduler import Segment
from miles_megatron.engine.self_check import gives_packed_bits
from miles_megatron.models.load import DTYPES, load_causal_lm


class Runner:
    """Loads a model folder and computes steps of it.

    exact: whether, on this machine, its steps have the bits of the trainer's packed forward (checked at start).
    """

    def __init__(self, config: EngineConfig, model_dir: Path) -> None:
        self.model = load_causal_lm(model_dir, dtype=config.dtype, device=config.device).requires_grad_(False)
        model_config: Any = self.model.config
        self.context_length = _context_length(config, model_config)
        self.eos_ids = end_ids(self.model)
        self.vocab_size: int = model_config.vocab_size
        self._group_size = model_config.num_attention_heads // model_config.num_key_value_heads
        self.cache = SlotCache(
            CacheShape(
                layers=model_config.num_hidden_layers,
                kv_heads=model_config.num_key_value_heads,
                head_dim=getattr(model_config, "head_dim", None)
                or model_config.hidden_size // model_config.num_attention_heads,
                slots=config.max_running,
                length=CacheShape.slot_length(self.context_length),
                pages=config.prefix_tokens // PAGE,
            ),
            dtype=DTYPES[config.dtype],
            device=config.device,
        )
        self._decoder, self.exact = self._choose_decoder(fused=config.fused)

    def _choose_decoder(self, *, fused: bool) -> tuple[Decoder, bool]:
        """The fused decoder where it has the packed forward's bits, else the model's own; and whether that one has."""

        def exact(decoder: Decoder) -> bool:
            return gives_packed_bits(decoder, self.model, self.cache, vocab_size=self.vocab_size)

        plain = ModelDecoder(self.model)
        with torch.inference_mode():
            quick = fuse(self.model) if fused else None
            if quick is not None and exact(quick):
                return quick, True
            return plain, exact(plain)

    def compute(self, segments: Sequence[Segment]) -> list[tuple[int, float]]:
        """Compute the segments; the token and log-probability that follow each one that is `last`, in order."""
        ordered = sorted(segments, key=lambda s: s.length > 1)
        pieces = [Piece(s.request.slot, s.start, s.request.tokens[s.start : s.start + s.length]) for s in ordered]
        hidden = step(self._decoder, pieces, self.cache, group_size=self._group_size)
        rows: list[int] = []
        draws: list[Draw] = []
        place: dict[int, int] = {}
        end = 0
        for segment in ordered:
            end += segment.length
            if segment.last:
                place[id(segment)] = len(rows)
                rows.append(end - 1)
                request = segment.request
                draws.append(Draw(request.params, request.seed, request.num_outputs))
        if not rows:
            return []
        logits = self._decoder.logits(hidden[rows])
        tokens, logprobs = sample(logits, draws)
        order = [place[id(s)] for s in segments if s.last]
        return [(tokens[i], logprobs[i]) for i in order]


def end_ids(model: nn.Module) -> frozenset[int]:
    """All end-of-sequence ids of the generation config and of the model's config."""
    found: set[int] = set()
    for source in (getattr(model, "generation_config", None), model.config):
        value = getattr(source, "eos_token_id", None)
        found.update([value] if isinstance(value, int) else value or ())
    return frozenset(found)


def _context_length(config: EngineConfig, model_config: Any) -> int:
    limit: int = model_config.max_position_embeddings
    if config.context_length is None:
        return limit
    if config.context_length > limit:
        raise ConfigError(
            f"context_length: expected at most the model's {limit} positions, found {config.context_length}."
        )
    return config.context_length
