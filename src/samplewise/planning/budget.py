"""What memory a call may take beyond inputs, outputs and gradients, and what a plan must know of a device. No torch here."""

from __future__ import annotations

import re
from dataclasses import dataclass

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


def gpu_budget(free: int) -> int:
    """The default workspace on a GPU with so many free bytes."""
    return min(LARGEST_GPU, 1 << max(20, (free // 4).bit_length() - 1))


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
