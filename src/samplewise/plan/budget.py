"""How much memory a call may take beyond its inputs, outputs and gradients."""

from __future__ import annotations

import re

import torch

from samplewise.errors import TransducerError

MIB = 1 << 20
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
DEFAULT_CPU = 64 * MIB  # more has not made a CPU faster: a tile should stay near the caches
LARGEST_GPU = 2048 * MIB


def parse_budget(budget: int | str | None) -> int | None:
    """Bytes from a number or from text such as "512MiB" or "1.5 GB"; None stays None."""
    if budget is None:
        return None
    if isinstance(budget, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", budget)
        if not match or match[2].upper() not in UNITS:
            raise TransducerError(f'memory_budget is {budget!r}; write bytes, or text such as "512MiB" or "1.5GB"')
        budget = int(float(match[1]) * UNITS[match[2].upper()])
    if not isinstance(budget, int) or isinstance(budget, bool) or budget <= 0:
        raise TransducerError(f"memory_budget is {budget!r}; it must be a positive number of bytes")
    return budget


def default_budget(device: torch.device) -> int:
    """A workspace that is safe and fast: 64 MiB on a CPU; on a GPU a quarter of what is free, at most 2 GiB."""
    if device.type == "cuda":
        return min(LARGEST_GPU, torch.cuda.mem_get_info(device)[0] // 4)
    return DEFAULT_CPU


def show_bytes(size: float) -> str:
    """A size for people: 1536 -> "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
