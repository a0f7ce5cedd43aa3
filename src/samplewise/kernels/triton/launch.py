"""From tensors to what a Triton kernel takes: the right device, and sizes of blocks."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Sequence

import numpy as np
import torch
import triton
from torch import Tensor

from samplewise.kernels.layout import on_device

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # as Triton itself looks, where a kernel is decorated


def on(tensor: Tensor) -> contextlib.AbstractContextManager:
    """Launch on the tensor's device, whichever is current, and on PyTorch's current stream of it."""
    if tensor.is_cuda:
        return torch.cuda.device(tensor.device)
    return np.errstate(all="ignore")  # of the interpreter, in which infinities and NaN are as usual as on a GPU


def bits(tensor: Tensor) -> Tensor:
    """bfloat16 as int16 for the interpreter, which rounds it wrongly; `numbers.py` knows it by that. All else as it is."""
    return tensor.view(torch.int16) if INTERPRETED and tensor.dtype == torch.bfloat16 else tensor


def rows_of(tensor: Tensor) -> Tensor:
    """A matrix whose rows are contiguous, which is what kernels read and write."""
    if tensor.stride(1) != 1 and tensor.shape[1] > 1:
        raise ValueError(f"a matrix of shape {tuple(tensor.shape)} has strides {tensor.stride()}; its rows must be contiguous")
    return bits(tensor)


def warps_of(threads: int) -> int:
    """As many warps as make so many threads; some GPUs have 32 in one, others 64."""
    return threads // 32 if INTERPRETED else threads // triton.runtime.driver.active.get_current_target().warp_size


def power_of_2(size: int, most: int) -> int:
    """The smallest power of two that is at least `size`, but no more than `most`."""
    return min(most, 1 << max(0, size - 1).bit_length())


def blocks(size: int, block: int) -> int:
    """How many blocks cover `size`."""
    return -(-size // block)


def constants(rows: Sequence[tuple[int, ...]], device: torch.device) -> Tensor:
    """An int64 table that calls share, made once a device and stream, so that it is there when a kernel on the stream runs."""
    return _constants(tuple(rows), device, torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0)


@functools.lru_cache(maxsize=256)
def _constants(rows: tuple[tuple[int, ...], ...], device: torch.device, stream: int) -> Tensor:
    return on_device(device, rows)
