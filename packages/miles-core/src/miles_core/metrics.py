"""Figures that can be merged: every mean is a sum and a count, every reduction has a name."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from miles_core.errors import RecordError


class Reduction(StrEnum):
    """How observations of one figure become one number."""

    MEAN = "mean"
    SUM = "sum"
    MAX = "max"
    MIN = "min"
    COUNT = "count"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure. total: sum of the observations times their weights; count: sum of the weights."""

    reduction: Reduction
    total: float = 0.0
    count: float = 0.0
    largest: float = -math.inf
    smallest: float = math.inf

    def observe(self, value: float, *, count: float = 1.0) -> Self:
        """With one more observation; `value` is the mean of `count` of them."""
        return replace(
            self,
            total=self.total + value * count,
            count=self.count + count,
            largest=max(self.largest, value),
            smallest=min(self.smallest, value),
        )

    def merge(self, other: Self) -> Self:
        """Both together; equal, up to rounding, to observing everything in one place."""
        if self.reduction is not other.reduction:
            raise RecordError(f"expected figures of one reduction, found {self.reduction} and {other.reduction}.")
        return replace(
            self,
            total=self.total + other.total,
            count=self.count + other.count,
            largest=max(self.largest, other.largest),
            smallest=min(self.smallest, other.smallest),
        )

    @property
    def value(self) -> float:
        """The number; NaN where nothing was observed, except sums and counts, which are then 0."""
        match self.reduction:
            case Reduction.SUM:
                return self.total
            case Reduction.COUNT:
                return self.count
            case Reduction.MAX:
                return self.largest if self.count else math.nan
            case Reduction.MIN:
                return self.smallest if self.count else math.nan
        return self.total / self.count if self.count else math.nan


class Metrics:
    """Figures by name, filled where they arise and merged across processes."""

    def __init__(self, figures: Mapping[str, Figure] | None = None) -> None:
        self._figures: dict[str, Figure] = dict(figures or {})

    @property
    def figures(self) -> Mapping[str, Figure]:
        """All figures, in the order of their first observation."""
        return dict(self._figures)

    def observe(self, name: str, value: float, *, count: float = 1.0, reduction: Reduction = Reduction.MEAN) -> None:
        """Add an observation; the first one of a name fixes its reduction."""
        figure = self._figures.get(name, Figure(reduction=reduction))
        if figure.reduction is not reduction:
            raise RecordError(f"figure {name!r}: expected the reduction {figure.reduction}, found {reduction}.")
        self._figures[name] = figure.observe(value, count=count)

    def merge(self, others: Iterable[Self]) -> Self:
        """A new set with the figures of all."""
        merged = dict(self._figures)
        for other in others:
            for name, figure in other._figures.items():
                merged[name] = merged[name].merge(figure) if name in merged else figure
        return type(self)(merged)

    def values(self) -> dict[str, float]:
        """Name -> number."""
        return {name: figure.value for name, figure in self._figures.items()}
