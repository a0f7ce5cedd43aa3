"""What is measured on a GPU, in one process: sizes, steps of one method, and their time and memory.

The benchmark proper (`runner`) is for CPUs and starts a process for each measurement; a GPU counts its own memory.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from samplewise import transducer_loss
from samplewise.bench.baseline import joint_logits, plain_loss
from samplewise.bench.cases import Case
from samplewise.bench.workloads import Workload, make_workload

MOST_RUNS, MOST_SECONDS = 20, 2.0  # of one measurement
PRODUCT_ROWS = 16384
PEERS = ("plain", "torchaudio", "products")


def cases(tiny: bool) -> Iterator[tuple[Case, torch.dtype, tuple[str, ...]]]:
    """Characters, word pieces, planted alignments, large vocabularies, and 40 s of audio up to B = 1024; and the methods."""
    if tiny:
        yield Case("tiny", "random", 2, 6, 3, 17, 8), torch.float32, ("auto", *PEERS)
        return
    for dtype in (torch.float32, torch.bfloat16):
        every = ("auto", "guided", "samplewise", "eager", *PEERS)
        yield Case("characters", "random", 16, 400, 100, 32, 256), dtype, every
        yield Case("random", "random", 4, 300, 60, 2048, 512), dtype, every
        yield Case("planted", "planted", 4, 300, 60, 2048, 512), dtype, every
        for batch in (1, 16, 128):
            yield Case(f"40 s, B={batch}", "random", batch, 1000, 100, 1024, 512), dtype, ("auto", "fused", *PEERS)
        yield Case("8193 classes", "random", 8, 1000, 100, 8193, 512), dtype, ("auto", "fused", "guided", *PEERS)
    yield Case("40 s, B=1024", "random", 1024, 1000, 100, 1024, 512), torch.bfloat16, ("auto", "products")
    yield Case("40 s, B=1024, 256 classes", "random", 1024, 1000, 100, 256, 64), torch.float32, ("auto", "products")


def tensors(case: Case, device: torch.device, dtype: torch.dtype) -> Workload:
    """The case's tensors as leaves on the device. Random ones are made there, where large ones are made fastest."""
    B, T, U, V, D = case.batch, case.frames, case.labels, case.classes, case.dim

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, dtype=dtype)

    if case.weights == "planted":
        made = make_workload(case)
        floats, integers = made.learned, made.integers
    else:
        floats = (normal(B, T, D), normal(B, U + 1, D), normal(V, D) * D**-0.5, normal(V) * 0.1)
        lengths = torch.tensor(case.lengths(), device=device)
        integers = (torch.randint(1, V, (B, U), device=device), lengths[0], lengths[1])
    leaves = [x.to(device, dtype).detach().requires_grad_() for x in floats]
    return Workload(leaves[0], leaves[1], leaves[2], leaves[3], *(x.to(device) for x in integers))


def step_of(method: str, case: Case, work: Workload) -> Callable[[], Any] | None:
    """One step, loss and all gradients; None if it cannot run here. "products" are the three products of N D V alone; "eager"
    and "fused" are "auto" and "tiled" with kernels that the caller has to choose."""
    if method == "products":
        return products(case, work.weight.detach())
    if method == "torchaudio":
        try:
            from torchaudio.functional import rnnt_loss
        except Exception:  # not installed, or for another PyTorch
            return None
        targets, frames, labels = (x.int() for x in work.integers)
        return lambda: rnnt_loss(joint_logits(work).float(), targets, frames, labels, blank=0, reduction="sum").backward()
    if method == "plain":

        def plain() -> None:
            with torch.device(work.weight.device):
                plain_loss(work).backward()

        return plain
    name = {"eager": "auto", "fused": "tiled"}.get(method, method)
    return lambda: transducer_loss(*work.learned, *work.integers, method=name, reduction="sum").backward()


def products(case: Case, weight: Tensor) -> Callable[[], None]:
    rows = min(case.nodes, PRODUCT_ROWS)
    z = torch.randn(rows, case.dim, device=weight.device, dtype=weight.dtype)
    h, dz = (torch.empty(rows, width, device=weight.device, dtype=weight.dtype) for width in (case.classes, case.dim))

    def run() -> None:
        for _ in range(max(1, round(case.nodes / rows))):
            torch.mm(z, weight.t(), out=h)
            torch.mm(h, weight, out=dz)
            torch.mm(h.t(), z)

    return run


def measure(step: Callable[[], Any], work: Workload) -> dict[str, Any]:
    """Median seconds of a step after one that compiles, and the peak of memory beyond inputs and gradients, bytes."""
    device = work.weight.device

    def once() -> float:
        for leaf in work.learned:
            leaf.grad = None
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        before = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - before

    once()
    for leaf in work.learned:
        leaf.grad = None
    held = 0
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        held = torch.cuda.memory_allocated(device)
    seconds = [once()]
    peak = torch.cuda.max_memory_allocated(device) - held - work.gradient_bytes if device.type == "cuda" else None
    while len(seconds) < MOST_RUNS and sum(seconds) < MOST_SECONDS:
        seconds.append(once())
    return {"seconds": statistics.median(seconds), "runs": len(seconds), "workspace": peak}
