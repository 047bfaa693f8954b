"""What a sender says about a shared-memory segment; the only thing a receiver believes, after checking it."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from miles_core.config import Config
from miles_core.errors import WeightSyncError
from miles_sync.orphans import SEGMENT_PREFIX
from miles_sync.plan import ALIGNMENT
from miles_sync.weights import DTYPES


class TensorEntry(Config):
    """One tensor: its bytes lie at `[offset, offset + nbytes)` of the segment, in row-major order."""

    name: str = Field(min_length=1)
    """Hugging Face name of the parameter."""
    dtype: str
    """A name of miles_sync.weights.DTYPES."""
    shape: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False)]
    """Elements per dimension."""
    offset: int = Field(ge=0)
    """Bytes from the start of the segment; a multiple of 64."""
    nbytes: int = Field(ge=0)
    """Bytes of the tensor."""
    digest: str = Field(pattern=r"^[0-9a-f]{32}$")
    """xxh3-128 of the bytes."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.dtype not in DTYPES:
            raise ValueError(f"tensor {self.name}: expected an element type among {', '.join(DTYPES)}.")
        expected = math.prod(self.shape) * DTYPES[self.dtype].itemsize
        if self.nbytes != expected:
            raise ValueError(
                f"tensor {self.name}: {list(self.shape)} of {self.dtype} takes {expected} bytes, found {self.nbytes}."
            )
        if self.offset % ALIGNMENT:
            raise ValueError(f"tensor {self.name}: expected an offset divisible by {ALIGNMENT}, found {self.offset}.")
        return self


class Manifest(Config):
    """The tensors of one bucket in one segment, for one weight version."""

    version: int = Field(ge=0)
    """Weight version that the bucket belongs to."""
    segment: str = Field(pattern=rf"^{SEGMENT_PREFIX}[A-Za-z0-9]{{1,22}}$")
    """POSIX shared-memory name, without a leading slash."""
    nbytes: int = Field(ge=0)
    """Bytes of the segment that are used."""
    tensors: Annotated[tuple[TensorEntry, ...], Field(strict=False, min_length=1)]
    """In the order of their offsets."""

    @model_validator(mode="after")
    def _disjoint(self) -> Self:
        end = 0
        names: set[str] = set()
        for entry in self.tensors:
            if entry.offset < end:
                raise ValueError(f"tensor {entry.name}: its bytes overlap those of the tensor before it.")
            if entry.name in names:
                raise ValueError(f"tensor {entry.name}: expected each name once, found it twice.")
            end = entry.offset + entry.nbytes
            if end > self.nbytes:
                raise ValueError(f"tensor {entry.name}: it ends at byte {end} of a segment of {self.nbytes}.")
            names.add(entry.name)
        return self

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> Self:
        """The checked manifest; WeightSyncError with every violation, naming the tensor, in one sentence."""
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            raise WeightSyncError(f"unusable weight manifest: {_reasons(error)}") from error

    @property
    def digests(self) -> dict[str, str]:
        """Digest of each tensor by name."""
        return {entry.name: entry.digest for entry in self.tensors}


def _reasons(error: ValidationError) -> str:
    parts = []
    for item in error.errors(include_url=False, include_context=False, include_input=False):
        place = ".".join(str(step) for step in item["loc"])
        text = item["msg"].removeprefix("Value error, ")
        parts.append(f"{place}: {text}" if place and not text.startswith("tensor ") else text)
    return "; ".join(parts)
