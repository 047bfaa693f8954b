"""Metrics of a step as sums, counts and maxima, so that they do not depend on how the batch was cut."""

from collections.abc import Callable

import torch
from torch import Tensor


class Meter:
    """Collects per-token values on one rank in float64; `reduce` makes them global."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._maxima: dict[str, float] = {}

    def mean(self, name: str, values: Tensor) -> None:
        """Add values whose mean over all ranks and calls is wanted."""
        self._sums[name] = self._sums.get(name, 0.0) + values.detach().double().sum().item()
        self._counts[name] = self._counts.get(name, 0) + values.numel()

    def maximum(self, name: str, values: Tensor) -> None:
        """Add non-negative values whose maximum over all ranks and calls is wanted."""
        found = values.detach().double().max().item() if values.numel() else 0.0
        self._maxima[name] = max(self._maxima.get(name, 0.0), found)

    def reduce(
        self,
        *,
        means: tuple[str, ...],
        maxima: tuple[str, ...],
        device: torch.device,
        add: Callable[[Tensor], Tensor],
        largest: Callable[[Tensor], Tensor],
    ) -> dict[str, float]:
        """The named metrics over all ranks; a mean of nothing is 0. `add` and `largest` are collective."""
        own = [self._sums.get(name, 0.0) for name in means] + [float(self._counts.get(name, 0)) for name in means]
        totals = add(torch.tensor(own, dtype=torch.float64, device=device)).tolist()
        counts = totals[len(means) :]
        result = {name: totals[i] / counts[i] if counts[i] else 0.0 for i, name in enumerate(means)}
        peaks = [self._maxima.get(name, 0.0) for name in maxima]
        found = largest(torch.tensor(peaks, dtype=torch.float64, device=device)).tolist()
        return result | dict(zip(maxima, found, strict=True))
