"""Medians and quartiles of steps timed in turns. The first step of each is not counted, unless it is the only one."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any


def summary(times: Sequence[float]) -> dict[str, Any]:
    seconds = list(times[1:] or times)
    return {**quartiles(seconds), "n": len(seconds)}


def pairwise(times: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """Quartiles of the ratios of the steps of the same round."""
    first = 1 if min(len(times), len(others)) > 1 else 0
    return quartiles([a / b for a, b in list(zip(times, others, strict=False))[first:]])


def quartiles(values: Sequence[float]) -> dict[str, float]:
    if len(values) == 1:
        return {"median": values[0], "q1": values[0], "q3": values[0]}
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": middle, "q1": low, "q3": high}
