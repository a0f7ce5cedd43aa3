"""Which kernels serve a device: numba for the CPU; plain PyTorch elsewhere, and wherever numba cannot be imported."""

from __future__ import annotations

import functools
import importlib
import warnings
from types import ModuleType

import torch


def backend_for(device: torch.device) -> ModuleType:
    """The module of kernels for tensors on `device`. A missing compiler is a warning, once, and the same numbers."""
    return _load("numba" if device.type == "cpu" else "eager")


@functools.cache
def _load(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"samplewise.kernels.{name}")
    except ImportError as error:
        if name == "eager":
            raise
        warnings.warn(
            f"samplewise runs on plain PyTorch kernels, which are slower: {name} cannot be imported ({error})",
            RuntimeWarning,
            stacklevel=2,
        )
        return _load("eager")
