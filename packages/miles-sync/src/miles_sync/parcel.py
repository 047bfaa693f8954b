"""What travels to every engine at once, and what a transport is."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """One staging call, the same for every engine.

    route: path of the engine's HTTP call; body: its JSON. digests: of every tensor in the parcel, by name.
    nbytes: bytes of the tensors. echoes: whether the engine must answer the digests of what it staged.
    """

    route: str
    body: Mapping[str, Any]
    digests: Mapping[str, str]
    nbytes: int
    echoes: bool


class Transport(Protocol):
    """One way to put weights where engines can read them. Runs in one thread, which is not the event loop's."""

    def parcels(self, weights: Iterable[tuple[str, Tensor]], version: int) -> Iterator[Parcel]:
        """Parcels one at a time; a parcel's storage lives until the next one is asked for or the iterator is closed."""
        ...

    def settle(self, version: int) -> None:
        """Called once after a push that at least one engine took: drop what no engine will ask for again."""
        ...
