"""How much memory a call may take beyond its inputs, outputs and gradients, and what a plan must know about the device."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from samplewise.errors import TransducerError

MIB = 1 << 20
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
DEFAULT_CPU = 64 * MIB  # more has not made a CPU faster: a tile should stay near the caches
LARGEST_GPU = 2048 * MIB


@dataclass(frozen=True)
class Device:
    """Bytes of a tile that stay in the caches, the most rows of a tile, and whether all utterances of a group run at once."""

    cache: int
    most_rows: int
    at_once: bool


CPU = Device(cache=8 * MIB, most_rows=4096, at_once=False)  # measured; more has not made a CPU faster
LEAST_GPU_CACHE, MOST_GPU_ROWS = 4 * MIB, 1 << 16


def parse_budget(budget: int | str | None) -> int | None:
    """Bytes from a number or from text such as "512MiB" or "1.5 GB"; None stays None."""
    if budget is None:
        return None
    if isinstance(budget, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", budget)
        if not match or match[2].upper() not in UNITS:
            raise TransducerError(f'memory_budget is {budget!r}; write bytes, or text such as "512MiB" or "1.5GB"')
        size = float(match[1]) * UNITS[match[2].upper()]
        if size == float("inf"):
            raise TransducerError(f"memory_budget is {budget[:60]!r}; it is more than any machine has")
        budget = int(size)
    if not isinstance(budget, int) or isinstance(budget, bool) or budget <= 0:
        raise TransducerError(f"memory_budget is {budget!r}; it must be a positive number of bytes")
    return budget


def default_budget(device: torch.device) -> int:
    """A workspace that is safe and fast: 64 MiB on a CPU; on a GPU a quarter of what is free, at most 2 GiB.

    What PyTorch holds without using it is free, too. A power of two, so that a little more or less of it changes no plan, and
    the same inputs give the same bits.
    """
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return gpu_budget(torch.cuda.mem_get_info(device)[0] + unused)
    return DEFAULT_CPU


def gpu_budget(free: int) -> int:
    """The default workspace on a GPU with so many free bytes."""
    return min(LARGEST_GPU, 1 << max(20, (free // 4).bit_length() - 1))


def device_of(device: torch.device) -> Device:
    """What a plan must know about a device. On a GPU a tile takes half of the second-level cache, or LEAST_GPU_CACHE."""
    if device.type == "cuda":
        return gpu(torch.cuda.get_device_properties(device).L2_cache_size)
    return CPU if device.type in ("cpu", "meta") else gpu(0)


def gpu(cache: int) -> Device:
    """A GPU with a second-level cache of so many bytes."""
    return Device(max(LEAST_GPU_CACHE, cache // 2), MOST_GPU_ROWS, at_once=True)


def show_bytes(size: float) -> str:
    """A size for people: 1536 -> "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
