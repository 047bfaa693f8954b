"""Each step's trajectories as readable JSON lines."""

import json
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from miles_cli.tracking.jsonl import finite
from miles_core.errors import DataError
from miles_core.sample import Finish, Group, Origin, Sample, Span

Decode = Callable[[Sequence[int]], str]
"""Text of token ids, special tokens included: `lambda ids: tokenizer.decode(ids, skip_special_tokens=False)`."""

_MOST_BYTES_OF_A_CHARACTER = 4


class SamplesFile:
    """Writes `step-0003.jsonl` files into one folder, a line per sample.

    A line holds `step`, `prompt_id`, `rollout_id`, `reward`, `finish`, `error`, `num_tokens`, `messages`, `metadata`
    and `spans`: objects of `origin`, `trained`, `text` and `ids`; a sampled span also has `pieces` (the text of each
    token, empty where a character ends in a later one), `logprobs` and `weight_versions`.
    """

    def __init__(self, folder: Path, *, decode: Decode) -> None:
        self._folder = folder
        self._decode = decode
        self._decode_few = lru_cache(maxsize=1 << 16)(decode)

    def write(self, step: int, groups: Sequence[Group]) -> Path:
        """Write, or write anew, the file of a step; it appears whole."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = samples_path(self._folder, step)
        lines = [self._line(step, sample) for group in groups for sample in group.samples]
        work = path.with_name(f".{path.name}.{os.getpid()}")
        work.write_text("".join(lines), encoding="utf-8")
        work.replace(path)
        return path

    def _line(self, step: int, sample: Sample) -> str:
        live = sample.finish is not Finish.ABORTED
        record = {
            "step": step,
            "prompt_id": sample.prompt_id,
            "rollout_id": sample.rollout_id,
            "reward": sample.reward,
            "finish": str(sample.finish),
            "error": sample.error,
            "num_tokens": sample.num_tokens,
            "messages": list(sample.messages),
            "metadata": dict(sample.metadata),
            "spans": [self._span(span, live=live) for span in sample.spans],
        }
        return json.dumps(finite(record), ensure_ascii=False, allow_nan=False, default=str) + "\n"

    def _span(self, span: Span, *, live: bool) -> dict[str, Any]:
        sampled = span.origin is Origin.SAMPLED
        record: dict[str, Any] = {
            "origin": str(span.origin),
            "trained": live and sampled and span.trained,
            "text": self._decode(span.ids),
            "ids": list(span.ids),
        }
        if sampled:
            record["pieces"] = token_pieces(span.ids, decode=self._decode_few)
            record["logprobs"] = [round(value, 6) for value in span.logprobs]
            record["weight_versions"] = list(span.weight_versions)
        return record


def samples_path(folder: Path, step: int) -> Path:
    """Where a step's trajectories lie."""
    return folder / f"step-{step:04d}.jsonl"


def read_samples(path: Path) -> list[dict[str, Any]]:
    """The lines of a step's file; DataError names a broken one."""
    samples = []
    lines = path.read_text(encoding="utf-8").split("\n")  # not splitlines: text may hold other line separators
    for number, line in enumerate(lines[:-1], start=1):
        try:
            samples.append(json.loads(line))
        except ValueError as error:
            raise DataError(f"{path}, line {number}: expected a JSON object: {error}.") from error
    return samples


def token_pieces(ids: Sequence[int], *, decode: Decode) -> list[str]:
    """The text that each token adds to the one before it.

    A character whose bytes are spread over several tokens belongs to the last of them; the others are empty. Each
    token is decoded behind its predecessor, because some tokenizers drop a leading space at the start of a text.
    """
    pieces: list[str] = []
    before: tuple[int, ...] = ()
    open_ids: tuple[int, ...] = ()
    for token in ids:
        open_ids = (*open_ids, int(token))
        context = decode(before) if before else ""
        text = decode((*before, *open_ids))
        piece = text[len(context) :] if text.startswith(context) else decode(open_ids)
        if piece.endswith("\ufffd") and len(open_ids) < _MOST_BYTES_OF_A_CHARACTER:
            pieces.append("")
            continue
        pieces.append(piece)
        before, open_ids = open_ids[-1:], ()
    if open_ids:
        pieces[-1] = decode((*before, *open_ids))[len(decode(before)) if before else 0 :]
    return pieces
