"""Training with PyTorch alone: FSDP2 on one or many ranks, over gloo on CPUs and NCCL on GPUs."""

from typing import TYPE_CHECKING

from miles_megatron.torch_backend.config import AdamWConfig, TorchBackendConfig

if TYPE_CHECKING:
    from miles_megatron.torch_backend.backend import TorchBackend

__all__ = ["AdamWConfig", "TorchBackend", "TorchBackendConfig"]


def __getattr__(name: str) -> object:
    """`TorchBackend` is imported when it is asked for, so that reading the configuration costs no torch import."""
    if name == "TorchBackend":
        from miles_megatron.torch_backend.backend import TorchBackend  # noqa: PLC0415 - see above

        return TorchBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
