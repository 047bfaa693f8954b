"""Samples as bytes: one safetensors blob, arrays as tensors, everything else as JSON in its metadata.

Tensors: `ids` int32, `logprobs` float64, `weight_versions` int64 (both over the sampled spans only, concatenated in
order) and `routing.N` for sample N. Never a pickle; what is decoded is checked against the sizes that it claims.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from miles_core.errors import RecordError
from miles_core.messages import check_messages
from miles_core.sample import Finish, Origin, Sample, Span

FORMAT = "miles.samples/2"
MAX_BYTES = 1 << 30
"""Most bytes that `decode` accepts unless told otherwise."""


def encode(samples: Sequence[Sample]) -> bytes:
    """Equal bytes for equal samples. RecordError when messages or metadata are no JSON (NaN included)."""
    spans = [span for sample in samples for span in sample.spans]
    sampled = [span for span in spans if span.origin is Origin.SAMPLED]
    tensors: dict[str, NDArray[Any]] = {
        "ids": np.array([i for span in spans for i in span.ids], dtype=np.int32),
        "logprobs": np.array([x for span in sampled for x in span.logprobs], dtype=np.float64),
        "weight_versions": np.array([v for span in sampled for v in span.weight_versions], dtype=np.int64),
    }
    for number, sample in enumerate(samples):
        if sample.routing is not None:
            tensors[f"routing.{number}"] = np.ascontiguousarray(sample.routing)
    try:
        headers = [_header(sample) for sample in samples]
        header = json.dumps({"format": FORMAT, "samples": headers}, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise RecordError(f"expected messages and metadata of samples as JSON values, found: {error}.") from None
    # One key: safetensors writes several in an order that differs from process to process.
    return save_tensors(tensors, metadata={"miles": header})


def _header(sample: Sample) -> dict[str, Any]:
    return {
        "prompt_id": sample.prompt_id,
        "rollout_id": sample.rollout_id,
        "spans": [[span.origin.value, len(span.ids), span.trained] for span in sample.spans],
        "finish": sample.finish.value,
        "reward": sample.reward,
        "error": sample.error,
        "messages": [dict(message) for message in sample.messages],
        "metadata": dict(sample.metadata),
    }


def decode(data: bytes, *, max_bytes: int = MAX_BYTES) -> list[Sample]:
    """The samples that `encode` turned into `data`; RecordError when the bytes are anything else.

    JSON has no tuples: sequences inside messages and metadata come back as lists.
    """
    if len(data) > max_bytes:
        raise RecordError(f"expected at most {max_bytes} bytes of samples, found {len(data)}.")
    headers = _headers(data)
    try:
        tensors = load_tensors(data)
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise RecordError(f"expected samples as safetensors, found bytes that are not ({error}).") from None
    reader = _Reader(tensors)
    samples = [reader.sample(header, number) for number, header in enumerate(headers)]
    reader.finish()
    return samples


def _headers(data: bytes) -> list[Any]:
    size = int.from_bytes(data[:8], "little") if len(data) >= 8 else len(data)
    if size + 8 > len(data):
        raise RecordError(f"expected samples as safetensors, found {len(data)} bytes that are cut off or no samples.")
    try:
        header = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["miles"])
        form, headers = header["format"], header["samples"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RecordError(f"expected the metadata of {FORMAT}, found none that can be read ({error!r}).") from None
    if form != FORMAT or not isinstance(headers, list):
        raise RecordError(f"expected samples in the format {FORMAT}, found {form!r}.")
    return headers


class _Reader:
    """Takes the arrays of the blob piece by piece, in the order of the headers."""

    def __init__(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        self._tensors = dict(tensors)
        self._ids = self._flat("ids", np.int32)
        self._logprobs = self._flat("logprobs", np.float64)
        self._versions = self._flat("weight_versions", np.int64)
        self._token = 0
        self._sampled = 0

    def _flat(self, name: str, dtype: Any) -> NDArray[Any]:
        array = self._tensors.pop(name, None)
        if array is None or array.ndim != 1 or array.dtype != dtype:
            found = "none" if array is None else f"{list(array.shape)} of {array.dtype}"
            raise RecordError(f"expected samples with a flat tensor {name!r} of {np.dtype(dtype)}, found {found}.")
        return array

    def sample(self, header: Any, number: int) -> Sample:
        try:
            return Sample(
                prompt_id=_text(header["prompt_id"]),
                rollout_id=_text(header["rollout_id"]),
                spans=tuple(self._span(*entry) for entry in header["spans"]),
                finish=Finish(header["finish"]),
                reward=None if header["reward"] is None else float(header["reward"]),
                routing=self._tensors.pop(f"routing.{number}", None),
                error=None if header["error"] is None else _text(header["error"]),
                messages=tuple(check_messages(header["messages"])),
                metadata=_table(header["metadata"]),
            )
        except RecordError as error:
            raise RecordError(f"sample {number} of the bytes: {error}") from None
        except (KeyError, TypeError, ValueError) as error:
            raise RecordError(f"sample {number} of the bytes: expected the header of a sample ({error!r}).") from None

    def _span(self, origin: str, length: int, trained: bool) -> Span:
        if type(length) is not int or type(trained) is not bool or not 0 <= length <= len(self._ids) - self._token:
            raise RecordError(f"expected spans that fit {len(self._ids)} ids, found one of {length}.")
        ids = tuple(self._ids[self._token : self._token + length].tolist())
        self._token += length
        if Origin(origin) is not Origin.SAMPLED:
            return Span(origin=Origin(origin), ids=ids, trained=trained)
        piece = slice(self._sampled, self._sampled + length)
        self._sampled += length
        return Span(
            origin=Origin.SAMPLED,
            ids=ids,
            logprobs=tuple(self._logprobs[piece].tolist()),
            weight_versions=tuple(self._versions[piece].tolist()),
            trained=trained,
        )

    def finish(self) -> None:
        """RecordError when something is left that no header speaks of."""
        for name, taken, array in (
            ("ids", self._token, self._ids),
            ("logprobs", self._sampled, self._logprobs),
            ("weight_versions", self._sampled, self._versions),
        ):
            if taken != len(array):
                raise RecordError(f"expected {taken} {name} from the spans of the samples, found {len(array)}.")
        if self._tensors:
            raise RecordError(f"expected no tensors beside those of the samples, found {sorted(self._tensors)}.")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise RecordError(f"expected a string, found {type(value).__name__}.")
    return value


def _table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RecordError(f"expected metadata as an object, found {type(value).__name__}.")
    return value
