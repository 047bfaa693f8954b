"""The engine's weights, and the transaction that replaces them."""

import threading
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from miles_core.errors import WeightSyncError


class WeightStore:
    """Stages tensors beside a model's parameters and puts them in all at once.

    `stage` may run in any thread while the model computes; `commit` only where no step is running.
    """

    def __init__(self, model: nn.Module) -> None:
        self._targets = dict(model.named_parameters(remove_duplicate=False))
        self._aliases = {id(p): name for name, p in model.named_parameters()}
        self._staged: dict[str, Tensor] | None = None
        self._lock = threading.Lock()

    @property
    def open(self) -> bool:
        """Whether a transaction is open."""
        return self._staged is not None

    def begin(self) -> None:
        """Open a transaction; one that was left open by a sender that died is dropped."""
        with self._lock:
            self._staged = {}

    def stage(self, tensors: Iterable[tuple[str, Tensor]], *, copy: bool = True) -> list[str]:
        """Keep tensors of a parameter's name, shape and element type; their names.

        copy: False takes the tensors themselves, which nobody else may then change.
        WeightSyncError names the tensor that does not fit; the transaction stays open, so that the sender decides.
        A call belongs to the transaction that was open when it began: one that outlives it stages nothing more.
        """
        opened = self._staged
        names = []
        for name, tensor in tensors:
            kept = self._fitting(name, tensor).to(self._targets[name].device, copy=copy)
            with self._lock:
                if opened is None or self._staged is not opened:
                    why = "nothing is open" if opened is None else "the transaction it was sent in has ended"
                    raise WeightSyncError(f"tensor {name}: expected begin_weight_update before it; {why}.")
                opened[self._aliases[id(self._targets[name])]] = kept
            names.append(name)
        return names

    def commit(self, *, partial: bool = False) -> int:
        """Replace the parameters by what was staged, all or none; how many. WeightSyncError leaves them as they were.

        partial: accept a transaction that leaves some parameters as they are.
        """
        with self._lock:
            staged, self._staged = self._staged, None
        if staged is None:
            raise WeightSyncError("expected begin_weight_update before a commit; nothing is open.")
        missing = [name for name in self._aliases.values() if name not in staged]
        if missing and not partial:
            raise WeightSyncError(
                f"tensor {missing[0]}: not sent, with {len(missing) - 1} more; a commit needs every parameter. "
                "The engine keeps its version."
            )
        with torch.no_grad():
            for name, tensor in staged.items():
                self._targets[name].data.copy_(tensor)
        return len(staged)

    def abort(self) -> None:
        """Drop what was staged; no open transaction is fine."""
        with self._lock:
            self._staged = None

    def _fitting(self, name: str, tensor: Tensor) -> Tensor:
        target = self._targets.get(name)
        if target is None:
            raise WeightSyncError(f"tensor {name}: the model has no parameter of this name.")
        if target.shape != tensor.shape or target.dtype != tensor.dtype:
            raise WeightSyncError(
                f"tensor {name}: expected {list(target.shape)} of {target.dtype}, "
                f"found {list(tensor.shape)} of {tensor.dtype}."
            )
        return tensor.detach()
