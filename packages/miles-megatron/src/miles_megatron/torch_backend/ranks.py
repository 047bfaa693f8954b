"""How the ranks of one training job meet."""

import sys
from datetime import timedelta
from typing import Literal

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from miles_core import env
from miles_core.errors import TrainError

LOOPBACK = ("file://", "tcp://127.0.0.1:", "tcp://localhost:")


class Ranks:
    """The process group of this rank, and the arithmetic over it.

    rendezvous: a torch.distributed init method (`tcp://host:port`, `file:///path`, `env://`); one rank needs none. A
    group that exists already in this process is used when it has the same rank and size, and is then left alone by
    `close`.
    """

    def __init__(
        self, *, rank: int, world_size: int, rendezvous: str | None, device: Literal["cpu", "cuda"], timeout_s: float
    ) -> None:
        self.rank, self.world_size, self._kind = rank, world_size, device
        if device == "cuda":
            _take_gpu(rank)
        self._owner = not dist.is_initialized()
        if self._owner:
            self._join(rendezvous, timeout_s)
        elif (dist.get_rank(), dist.get_world_size()) != (rank, world_size):
            raise TrainError(
                f"expected to be rank {rank} of {world_size}, found a process group of this process as rank "
                f"{dist.get_rank()} of {dist.get_world_size()}; one process serves one rank of one job."
            )
        self.mesh: DeviceMesh = init_device_mesh(device, (world_size,))

    def _join(self, rendezvous: str | None, timeout_s: float) -> None:
        if rendezvous is None and self.world_size > 1:
            raise TrainError(f"expected a rendezvous for {self.world_size} ranks, such as tcp://127.0.0.1:29500.")
        if rendezvous is None or rendezvous.startswith(LOOPBACK):
            env.export("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
        try:
            dist.init_process_group(
                "nccl" if self._kind == "cuda" else "gloo",
                init_method=rendezvous,
                store=dist.HashStore() if rendezvous is None else None,
                rank=self.rank,
                world_size=self.world_size,
                timeout=timedelta(seconds=timeout_s),
            )
        except (RuntimeError, ValueError) as error:
            raise TrainError(
                f"rank {self.rank} of {self.world_size}: the other ranks were not met at {rendezvous} "
                f"within {timeout_s:g} s ({error})."
            ) from error

    @property
    def device(self) -> torch.device:
        """This rank's device."""
        return torch.device("cuda", torch.cuda.current_device()) if self._kind == "cuda" else torch.device("cpu")

    def sum(self, values: Tensor) -> Tensor:
        """Elementwise sum over ranks. Collective."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def maximum(self, values: Tensor) -> Tensor:
        """Elementwise maximum over ranks. Collective."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def _reduce(self, values: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
        if self.world_size == 1:
            return values
        result = values.clone()
        dist.all_reduce(result, op=operation)
        return result

    def meet(self) -> None:
        """Return when every rank has called it. Collective."""
        if self.world_size > 1:
            dist.barrier()

    def close(self) -> None:
        """Leave the group, if this object joined it."""
        if self._owner and dist.is_initialized():
            dist.destroy_process_group()
        self._owner = False


def _take_gpu(rank: int) -> None:
    if not torch.cuda.is_available():
        raise TrainError("expected a CUDA device for device = 'cuda', found none; set device = 'cpu'.")
    torch.cuda.set_device(rank % torch.cuda.device_count())
