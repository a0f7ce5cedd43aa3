"""The passes of every method by its name: losses (B,) float64 of a problem, and its gradients where they are wanted."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from samplewise.ops import batched, guided, samplewise, tiled
from samplewise.ops.problem import Gradients, Problem
from samplewise.planning.planner import Schedule

Run = Callable[[Problem, Tensor, Gradients | None, Schedule, float], Tensor]  # weights (B,), and the tolerance

RUNS: dict[str, Run] = {
    "batched": batched.run, "samplewise": samplewise.run, "tiled": tiled.run, "guided": guided.run,
}  # fmt: skip
