"""One step of any method on a workload: the summed loss, and the gradients of both encodings, weight and bias."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import samplewise
from samplewise import choices
from samplewise.bench.baseline import plain_loss
from samplewise.bench.cases import Case
from samplewise.bench.names import PLAIN, SAMPLED, SAMPLED_CLASSES, Method
from samplewise.bench.peers.adapters import STEPS
from samplewise.bench.workloads import Workload, make_workload
from samplewise.bench.yardsticks import make_yardstick

OUR_OPTIONS: dict[str, dict[str, Any]] = {
    "auto": {},
    "guided": {"method": "guided"},
    "tiled": {"method": "tiled"},
    "tiled-exact": {"method": "tiled", "tolerance": 0.0},
    "samplewise": {"method": "samplewise"},
    "batched": {"method": "batched"},
}
Result = tuple[Tensor, tuple[Tensor, ...]]


def loss_function(method: Method, budget: int | None) -> Callable[[Workload], Tensor]:
    """The summed loss of a workload by this method."""
    if method.base in OUR_OPTIONS:
        options = OUR_OPTIONS[method.base]

        def ours(workload: Workload) -> Tensor:
            return samplewise.transducer_loss(
                *workload.learned, *workload.integers, reduction="sum", memory_budget=budget, **options
            )

        return ours
    if method.base in SAMPLED:
        scope = "utterance" if method.base == "sampled" else "batch"
        tensors: choices.Method = "batched" if method.base == "sampled-4d" else "auto"

        def sampled(workload: Workload) -> Tensor:
            targets, _, target_lengths = workload.integers
            vocabulary = samplewise.sample_vocabulary(
                targets, target_lengths, len(workload.weight), SAMPLED_CLASSES, scope=scope,
                generator=torch.Generator().manual_seed(0),
            )  # fmt: skip
            return samplewise.transducer_loss(
                *workload.learned, *workload.integers, reduction="sum", memory_budget=budget, vocabulary=vocabulary,
                method=tensors,
            )  # fmt: skip

        return sampled
    return plain_loss if method.base == PLAIN else STEPS[method.base]


def make_step(method: Method, workload: Workload, budget: int | None) -> Callable[[], Result]:
    """A function that does one step on the workload."""
    loss_of = loss_function(method, budget)
    workload = workload.asking(not method.loss_only)

    def step() -> Result:
        with torch.autocast("cpu", torch.bfloat16, enabled=method.bf16):
            loss = loss_of(workload)
        if method.loss_only:
            return loss, ()
        return loss.detach(), torch.autograd.grad(loss, workload.learned)

    return step


def make_yardstick_step(method: Method, case: Case) -> Callable[[], None]:
    return make_yardstick(method.base, case, torch.bfloat16 if method.bf16 else torch.float32)


def warm_up(method: Method, case: Case) -> None:
    """Compile and load what the method needs, on workloads of a few hundred nodes and the case's classes up to 1024: one
    utterance, and more of them than threads, for lattices have a kernel for either."""
    tiny = Case("warm-up", "planted", 1, 60, 10, min(case.classes, 1024), min(case.dim, 64))
    if method.kind == "yardstick":
        make_yardstick_step(method, tiny)()
        return
    may_run = ("guided", "tiled") if method.base == "auto" else (method.base,)  # a small auto step is always tiled
    for base in may_run:
        for batch in (1, 2 * torch.get_num_threads()):
            make_step(method._replace(base=base), make_workload(replace(tiny, batch=batch)), None)()
    if "guided" in may_run:  # whose corridor has kernels of its own, for long utterances with hardly a loss
        make_step(method._replace(base="guided"), make_workload(Case("warm-up", "sure", 1, 280, 240, 16, 16)), None)()
