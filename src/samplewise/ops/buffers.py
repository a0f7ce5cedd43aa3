"""Workspace memory. A page that is touched for the first time costs more than the 4 KiB of numbers that are written to it."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

LARGE = 4 << 20  # bytes: two pages of 2 MiB. Measured: 64 MiB are touched in 8 ms in large pages, in 26 ms in those of 4 KiB
PAGES = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """An uninitialised tensor; a large one of a CPU lies in large pages where the system has them."""
    size = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or size < LARGE or PAGES is None:
        return torch.empty(*shape, dtype=dtype, device=device)
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(PAGES)
    except OSError:  # no such pages, or no such memory: PyTorch says what is wrong
        return torch.empty(*shape, dtype=dtype, device=device)
    return torch.frombuffer(memory, dtype=dtype).view(*shape)
