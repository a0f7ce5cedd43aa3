"""The memory that a step takes beyond its inputs, its loss and its gradients, as the system sees it.

    workspace = (peak of the resident set during the step) - (resident set before it) - (bytes of the gradients returned)

It is taken in a fresh process, whose inputs exist and have been touched, after a step on a tiny workload has loaded and
compiled what there is, from the first step at full size. Free memory of the heap is handed back before, so that the
step cannot hide in it; the worker is started with a malloc that takes large blocks from the system one by one.
"""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

from torch import Tensor


def resident() -> tuple[int, int] | None:
    """The resident set and its peak since the last reset, in bytes; None where the system does not tell."""
    try:
        with open("/proc/self/status") as status:
            fields = dict(line.split(":", 1) for line in status if line.startswith(("VmRSS", "VmHWM")))
        return int(fields["VmRSS"].split()[0]) << 10, int(fields["VmHWM"].split()[0]) << 10
    except (OSError, KeyError):
        return None


def reset_peak() -> bool:
    """Make the peak start again from the present; Linux only."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        return True
    except OSError:
        return False


def trim_heap() -> None:
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def largest_resident() -> int:
    """The peak of the whole life of this process, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


def weigh(step: Callable[[], tuple[Tensor, tuple[Tensor, ...]]]) -> dict[str, Any]:
    """Run one step; bytes of its workspace, of the gradients, and of the resident set before and at the peak, and the seconds
    that it took, which a malloc for weighing makes more."""
    trim_heap()
    how = "VmHWM" if reset_peak() and resident() else "ru_maxrss"
    found = resident()
    before = found[0] if found and how == "VmHWM" else largest_resident()
    start = time.perf_counter()
    _, gradients = step()
    seconds = time.perf_counter() - start
    found = resident()
    peak = found[1] if found and how == "VmHWM" else largest_resident()
    returned = sum(gradient.nbytes for gradient in gradients)
    return {
        "workspace": max(0, peak - before - returned), "gradients": returned, "before": before, "peak": peak, "how": how,
        "seconds": seconds,
    }  # fmt: skip


def limit_memory(size: int | None) -> None:
    """Let this process take `size` bytes of address space beyond what it has now; a request for more fails."""
    if size is None:
        return
    try:
        with open("/proc/self/statm") as file:
            held = int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        held = largest_resident()
    resource.setrlimit(resource.RLIMIT_AS, (held + size, resource.getrlimit(resource.RLIMIT_AS)[1]))
