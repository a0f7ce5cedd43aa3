"""What is measured on a GPU, in one process: sizes, steps of one method, and their time and memory.

The benchmark proper (`runner`) is for CPUs and starts a process for each measurement; a GPU counts its own memory.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from samplewise import observe, transducer_loss
from samplewise.bench.baseline import joint_logits, plain_loss
from samplewise.bench.cases import Case, trained
from samplewise.bench.errors import BenchError
from samplewise.bench.workloads import Workload, make_workload
from samplewise.choices import Method

MOST_RUNS, MOST_SECONDS = 20, 2.0  # of one measurement
MOST_TRAINED = 4  # joints of trained models, the largest
PRODUCT_ROWS = 16384
WINS, LOSES = 0.9, 1.05  # guided / tiled: less is worth it somewhere, more is too much anywhere
PEERS = ("plain", "torchaudio", "products")


def cases(tiny: bool) -> Iterator[tuple[Case, torch.dtype, tuple[str, ...]]]:
    """Characters, word pieces, planted alignments, what trained models see, large vocabularies, and 40 s of audio up to
    B = 1024; and the methods. Where no trained model's joint is at hand, planted ones of half the scores stand for it."""
    both = ("tiled", "guided")  # which of them "auto" should be is what is asked
    if tiny:
        yield Case("tiny", "random", 2, 6, 3, 17, 8), torch.float32, ("auto", *both, *PEERS)
        yield Case("tiny, planted", "planted", 1, 12, 3, 80, 8), torch.float32, both
        return
    try:
        real = sorted(trained(), key=lambda case: case.nodes * case.classes, reverse=True)[:MOST_TRAINED]
    except BenchError:
        real = [Case("like trained", "planted", 4, 600, 120, 2048, 512, scale=0.5)]
    for dtype in (torch.float32, torch.bfloat16):
        every = (*both, "samplewise", "eager", *PEERS)
        yield Case("characters", "random", 16, 400, 100, 32, 256), dtype, every
        yield Case("random", "random", 4, 300, 60, 2048, 512), dtype, every
        yield Case("planted", "planted", 4, 300, 60, 2048, 512), dtype, every
        for case in real:
            yield case, dtype, (*both, "plain", "products")
        for batch in (1, 16, 128):
            yield Case(f"40 s, B={batch}", "random", batch, 1000, 100, 1024, 512), dtype, ("auto", "fused", *PEERS)
        yield Case("8193 classes", "random", 8, 1000, 100, 8193, 512), dtype, ("tiled", "fused", "guided", *PEERS)
    yield Case("40 s, B=1024", "random", 1024, 1000, 100, 1024, 512), torch.bfloat16, ("auto", "products")
    yield Case("40 s, B=1024, 256 classes", "random", 1024, 1000, 100, 256, 64), torch.float32, ("auto", "products")


def tensors(case: Case, device: torch.device, dtype: torch.dtype) -> Workload:
    """The case's tensors as leaves on the device. Random ones are made there, where large ones are made fastest."""
    B, T, U, V, D = case.batch, case.frames, case.labels, case.classes, case.dim

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, dtype=dtype)

    if case.weights != "random":
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
    name = cast(Method, {"eager": "auto", "fused": "tiled"}.get(method, method))
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
    """Median seconds of a step after one that compiles, the peak of memory beyond inputs and gradients, bytes, and the share of
    the nodes whose emissions are exact, of ours."""
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

    with observe() as seen:
        once()
    nodes = sum(group.nodes for group in seen.groups)
    exact = sum(group.exact_nodes for group in seen.groups) / nodes if nodes else None
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
    return {"seconds": statistics.median(seconds), "runs": len(seconds), "workspace": peak, "exact": exact}


def advice(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Which method "auto" should take, from measurements of "guided" and "tiled" on the same cases: "guided" where it wins
    somewhere and loses nowhere, for where it cannot win it turns to "tiled" by itself."""
    seconds = {(row["name"], row["dtype"], row["method"]): row["seconds"] for row in rows if row.get("result") == "ok"}
    ratios = {
        f"{name}, {dtype}": took / seconds[name, dtype, "tiled"]
        for (name, dtype, method), took in seconds.items()
        if method == "guided" and (name, dtype, "tiled") in seconds
    }
    if not ratios:
        return {"auto": None, "why": "guided was not measured beside tiled", "ratios": {}}
    (best, least), (worst, most) = (pick(ratios.items(), key=lambda item: item[1]) for pick in (min, max))
    taken = "guided" if least <= WINS and most <= LOSES else "tiled"
    why = f"guided takes {least:.2f} of the time of tiled at best ({best}), {most:.2f} at worst ({worst})"
    return {"auto": taken, "why": why, "ratios": ratios}
