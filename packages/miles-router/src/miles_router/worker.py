"""One engine behind the router, as the pool sees it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class WorkerState(StrEnum):
    """What the router thinks of a worker."""

    PROBING = "probing"
    """New, or at another weight version: gets no calls until a probe clears it. Back from quarantine: on trial, it
    takes one call at a time until one succeeds."""
    HEALTHY = "healthy"
    QUARANTINED = "quarantined"
    """Gets no calls until a probe finds it answering and at the current weight version."""
    DRAINING = "draining"
    """Gets no new calls and is removed when its last one ends."""


@dataclass(slots=True, eq=False)
class Worker:
    """One engine behind the router. Only its pool changes it."""

    url: str
    state: WorkerState = WorkerState.PROBING
    active: int = 0
    picks: int = 0
    """Calls it was chosen for, in all."""
    weight_version: int | None = None
    """The version its last probe reported; None when unknown or not a number."""
    failures: int = 0
    """Failed calls and probes in all."""
    consecutive: int = 0
    """Failed calls since the last success."""
    missed_probes: int = 0
    trial: bool = False
    seen: bool = False
    """True once it was healthy; a worker that is still starting is probed more often, not less."""
    reason: str = ""
    """Why it is in quarantine."""
    turn: int = 0
    """Number of the pick it was last chosen by; the longest unpicked wins a tie."""
    next_probe_at: float = 0.0

    def view(self) -> Mapping[str, Any]:
        """The entry of `/list_workers`."""
        return {
            "url": self.url,
            "state": str(self.state),
            "active": self.active,
            "picks": self.picks,
            "weight_version": self.weight_version,
            "failures": self.failures,
            # What a worker answered may be quoted in it, and need not be proper text.
            "reason": self.reason.encode(errors="replace").decode(),
        }


def load_order(worker: Worker) -> tuple[int, int]:
    """Sorts the least active first, ties by who was not chosen for longest."""
    return worker.active, worker.turn
