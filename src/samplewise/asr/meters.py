"""What a step of training takes: seconds, processor seconds, the process's peak memory, and what its losses did."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from transformers.trainer_callback import ExportableState

from samplewise import Observation
from samplewise.asr.memory import proc_status
from samplewise.observation import GroupReport

NAMES = ("step_seconds", "step_cpu_seconds")
MEDIANS = (*NAMES, "sampled_classes")


class StepTimes(transformers.TrainerCallback):
    """Mean seconds of the steps since they were last asked for: forward, backward and update, without preparing the data.

    The first step of a process is left out: it compiles kernels and starts threads.
    """

    def __init__(self) -> None:
        self.started: tuple[float, float] | None = None
        self.first = True
        self.steps: list[tuple[float, float]] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.started = clocks()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert self.started is not None
        if not self.first:
            self.steps.append((clocks()[0] - self.started[0], clocks()[1] - self.started[1]))
        self.first = False

    def take(self) -> dict[str, float]:
        """`step_seconds` by the wall's clock and `step_cpu_seconds` of all threads of this process; then start anew."""
        steps, self.steps = self.steps, []
        means = [statistics.fmean(column) for column in zip(*steps, strict=True)]
        return dict(zip(NAMES, means, strict=True)) if means else {}


class Remembered(transformers.TrainerCallback, ExportableState):
    """A callback whose attributes are saved with the checkpoints, and taken up by a run that goes on from one."""

    def remembered(self) -> dict[str, Any]:
        """The attributes, as JSON has them."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": self.remembered()}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        saved = state.stateful_callbacks.get(type(self).__name__, {})
        for name, value in saved.get("attributes", {}).items() if state.global_step else ():
            setattr(self, name, value)


class LossReports:
    """What the losses since they were last asked for did. Figures are read then, so no step waits for a GPU."""

    def __init__(self) -> None:
        self.groups: list[GroupReport] = []

    def add(self, seen: Observation) -> None:
        self.groups += seen.groups

    def take(self) -> list[float]:
        """Active nodes, all nodes, and the largest bound of the share of occupancy outside the exact ones; then start anew."""
        groups, self.groups = self.groups, []
        active, nodes = sum(group.active_nodes or 0 for group in groups), sum(group.nodes for group in groups)
        return [active, nodes, max((group.bound for group in groups), default=0.0)]


class StepFrames:
    """Encoder frames of this process's batches, step by step, since they were last asked for."""

    def __init__(self) -> None:
        self.steps: dict[int, int] = {}

    def add(self, step: int, frames: int) -> None:
        self.steps[step] = self.steps.get(step, 0) + frames

    def take(self) -> list[int]:
        """The sums of the steps; then start anew."""
        steps, self.steps = self.steps, {}
        return list(steps.values())


def imbalance(frames: torch.Tensor) -> float:
    """Of the frames of all processes in some steps (P, S): the largest ratio of a process's to the median of its step."""
    return float((frames.amax(dim=0) / frames.double().quantile(0.5, dim=0).clamp(min=1)).max())


def clocks() -> tuple[float, float]:
    """Seconds by the wall's clock and by the processor's, GPU work included in the first."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.monotonic(), time.process_time()


def peak_bytes() -> int | None:
    """Peak memory so far: allocated on the GPU, or resident in this process; None where the system does not tell."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return proc_status("VmHWM") if sys.platform == "linux" else None


def load_average() -> float:
    """Mean number of processes that wanted to run in the last minute: over the number of cores, times mean little."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else float("nan")


def summary(log: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Of a run's log: medians of its lines' step times and numbers of sampled classes, the highest peak of its parts, the worst
    imbalance of its processes."""
    found: dict[str, float] = {}
    for name in MEDIANS:
        if values := [line[name] for line in log if line.get(name) is not None]:
            found[name] = statistics.median(values)
    if ratios := [line["frames_imbalance"] for line in log if "frames_imbalance" in line]:
        found["frames_imbalance"] = max(ratios)
    if peaks := [line["peak_bytes"] for line in log if line.get("peak_bytes")]:
        found["peak_bytes"] = max(peaks)
    return found
