"""Lets a CPU-only host without AMX import SGLang: every name resolves, calling a missing kernel fails loudly."""

import importlib.machinery
import sys
import types

import torch


def _missing(name: str):
    def kernel(*args, **kwargs):
        raise NotImplementedError(f"{name} has no CPU implementation here")

    return kernel


def __getattr__(name: str):
    if name.startswith("__"):
        raise AttributeError(name)
    return _missing(f"sgl_kernel.{name}")


class _Submodule(types.ModuleType):
    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return _missing(f"{self.__name__}.{name}")


for _name in ("mamba", "utils", "flash_attn", "quantization", "speculative", "elementwise", "sampling"):
    _module = _Submodule(f"sgl_kernel.{_name}")
    _module.__spec__ = importlib.machinery.ModuleSpec(_module.__name__, None)
    sys.modules[_module.__name__] = _module

if not torch.cuda.is_available():  # registering host memory means nothing without a GPU

    class _Runtime:
        cudaHostRegister = staticmethod(lambda pointer, size, flags: 0)
        cudaHostUnregister = staticmethod(lambda pointer: 0)
        cudaGetErrorString = staticmethod(lambda code: "stub")

    torch.cuda.cudart = lambda: _Runtime
