"""From tensors to what the compiled kernels take, and the number of threads they use."""

from __future__ import annotations

import threading

import numba
import numpy as np
import torch
from torch import Tensor

TYPES = {
    torch.float32: "<f4", torch.float64: "<f8", torch.bfloat16: "<i2", torch.float16: "<u2", torch.int64: "<i8",
    torch.int32: "<i4", torch.bool: "|b1",
}  # fmt: skip

# Some threading layers of numba abort the process when two Python threads enter a parallel region at once.
LOCK = threading.Lock()


def _launch() -> int:
    """Start numba's threads and say how many they are. It may share OpenMP with torch, whose setting must outlive this."""
    wanted = torch.get_num_threads()
    launched = numba.get_num_threads()
    if torch.get_num_threads() != wanted:
        torch.set_num_threads(wanted)
    return launched


LAUNCHED = _launch()


def array(tensor: Tensor) -> np.ndarray:
    """A NumPy view of `tensor`; bfloat16 as int16 and float16 as uint16, which are their bits.

    Not by `tensor.numpy()`: PyTorch would never again resize the storage, which sharded training does to its parameters.
    """
    return np.asarray(_View(tensor))


class _View:
    """What NumPy's array interface asks for; the array keeps this, and this the tensor."""

    __slots__ = ("__array_interface__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        size = tensor.itemsize
        self.tensor = tensor
        self.__array_interface__ = {
            "version": 3, "shape": tuple(tensor.shape), "typestr": TYPES[tensor.dtype], "data": (tensor.data_ptr(), False),
            "strides": None if tensor.is_contiguous() else tuple(step * size for step in tensor.stride()),
        }  # fmt: skip


def use_threads() -> int:
    """Let numba use as many threads as torch does, and say how many that is."""
    threads = max(1, min(torch.get_num_threads(), LAUNCHED))
    numba.set_num_threads(threads)
    return threads
