"""Every topology through every method, backend and option, against the sum over all alignments.

Usage: python scripts/topology_table.py [--insert docs/topologies.md]

A tiny batch (T up to 5, U up to 3, of utterances with T = 1, U = 0 and U > T among them) is run by each; the truth sums up the
probabilities of all alignments, one by one, in float64, and autograd differentiates that. A cell is the largest error of losses
and gradients, over the largest number of each: in float64, float32 and bfloat16. Triton runs in its interpreter where there is
no GPU.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

import samplewise
from documents import fill
from samplewise import topology
from samplewise.kernels import backend
from samplewise.kernels.eager.dropout import kept, keys
from samplewise.kernels.masks import dropout_of
from samplewise.ops import guided
from samplewise.reference_topologies import entries, enumerated

KINDS = (
    topology.regular(), topology.modified(), topology.constrained(), topology.hat(), topology.multi_blank((2, 3), sigma=0.05),
    topology.tdt((0, 1, 2), sigma=0.05),
)  # fmt: skip
METHODS = ("batched", "samplewise", "tiled", "guided")
BACKENDS = ("eager", "numba", "triton")
DTYPES = (torch.float64, torch.float32, torch.bfloat16)
FRAMES, LABELS = [5, 1, 4, 2], [3, 0, 2, 3]
VOCAB, DIM, SEED, DROPOUT = 6, 5, 9, 0.3


class Batch(NamedTuple):
    """Encodings, output layer and bias in float64, targets, and the blank."""

    learned: list[Tensor]
    targets: Tensor
    blank: int


def batch_of(kind: topology.Topology) -> Batch:
    generator = torch.Generator().manual_seed(SEED)
    rows, width = VOCAB + kind.extra, max(LABELS) + 1

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).bfloat16().double()  # exact in every dtype

    blank = VOCAB - 1 if kind.name == "multi_blank" else 0
    usual = torch.tensor([label for label in range(VOCAB) if label not in kind.blanks(blank)])
    targets = usual[torch.randint(len(usual), (len(FRAMES), max(LABELS)), generator=generator)]
    learned = [normal(len(FRAMES), max(FRAMES), DIM), normal(len(FRAMES), width, DIM), normal(rows, DIM), normal(rows)]
    return Batch(learned, targets, blank)


def span(batch: Batch) -> Tensor:
    """An alignment that leaves some of the lattice."""
    u = torch.arange(batch.targets.shape[1])
    return torch.stack((u // 2, u + 2), 1).expand(len(FRAMES), -1, 2)


def truth(kind: topology.Topology, batch: Batch, **options: Any) -> tuple[Tensor, list[Tensor]]:
    """Losses (B,), and gradients of the finite ones' sum, from all alignments one by one."""
    leaves = [x.clone().requires_grad_() for x in batch.learned]
    z = torch.tanh(leaves[0][:, :, None] + leaves[1][:, None])
    if "dropout" in options:
        dropout = dropout_of(DROPOUT, SEED, max(FRAMES), max(LABELS) + 1, 0)
        assert dropout is not None
        nodes = torch.meshgrid(*(torch.arange(n) for n in z.shape[:3]), indexing="ij")
        z = z * (kept(dropout, keys(dropout, *nodes), DIM).double() * dropout.scale)
    scores = z @ leaves[2].t() + leaves[3]
    losses, factor = [], torch.ones(len(kind.entries), 1, 1, dtype=torch.float64)
    factor[list(kind.emitting)] += options.get("fastemit_lambda", 0.0)
    for b, (T, U) in enumerate(zip(FRAMES, LABELS, strict=True)):
        found = entries(scores[b, :T, : U + 1], batch.targets[b, :U], batch.blank, kind)
        found = factor * found - (factor - 1) * found.detach()
        t = torch.arange(T)[:, None]
        penalty = options.get("delay_penalty", 0.0) * ((T - 1) / 2 - t.double())
        allowed = torch.ones(T, U, dtype=torch.bool)
        if "alignment" in options:
            allowed = (t >= options["alignment"][b, :U, 0]) & (t <= options["alignment"][b, :U, 1])
        losses.append(enumerated(found, kind, penalty, allowed))
    every = torch.stack(losses)
    total = every[torch.isfinite(every)].sum()
    if "clamp" not in options:
        return every.detach(), list(torch.autograd.grad(total, leaves))
    bounded = torch.autograd.grad(total, scores, retain_graph=True)[0].clamp(-options["clamp"], options["clamp"])
    return every.detach(), list(torch.autograd.grad(scores, leaves, bounded))


def ours(kind: topology.Topology, batch: Batch, dtype: torch.dtype, method: str, **options: Any) -> tuple[Tensor, list[Tensor]]:
    leaves = [x.to(dtype).requires_grad_() for x in batch.learned]
    losses = samplewise.transducer_loss(
        *leaves, batch.targets, torch.tensor(FRAMES), torch.tensor(LABELS), blank=batch.blank, topology=kind, reduction="none",
        method=method, **options,
    )  # fmt: skip
    return losses.detach(), list(torch.autograd.grad(losses[torch.isfinite(losses)].sum(), leaves))


def error(found: tuple[Tensor, list[Tensor]], right: tuple[Tensor, list[Tensor]]) -> float:
    """Infinite where another utterance has no path."""
    finite = torch.isfinite(right[0])
    if not torch.equal(torch.isfinite(found[0]), finite):
        return torch.inf
    pairs = [(found[0][finite], right[0][finite]), *zip(found[1], right[1], strict=True)]
    return max(float((a.double() - b).abs().max() / b.abs().max()) for a, b in pairs)


def cell(errors: list[float]) -> str:
    return "; ".join(f"{e:.0e}" for e in errors)


def methods() -> str:
    """Topologies by backends and methods."""
    lines = [f"| topology | kernels | {' | '.join(METHODS)} |", "|---|---" + "|---" * len(METHODS) + "|"]
    for kind in KINDS:
        batch = batch_of(kind)
        right = truth(kind, batch)
        for kernels in BACKENDS:
            with backend.use(kernels):
                cells = [cell([error(ours(kind, batch, dtype, m), right) for dtype in DTYPES]) for m in METHODS]
            lines.append(f"| `{kind}` | {kernels} | {' | '.join(cells)} |")
    return "\n".join(lines)


OPTIONS: dict[str, Callable[[Batch], dict[str, Any]]] = {
    "FastEmit": lambda batch: {"fastemit_lambda": 0.25},
    "delay penalty": lambda batch: {"delay_penalty": 0.125},
    "alignment": lambda batch: {"alignment": span(batch)},
    "dropout": lambda batch: {"dropout": DROPOUT, "dropout_seed": SEED},
    "clamp": lambda batch: {"clamp": 0.0625},
}


def options() -> str:
    """Topologies by options, the worst of all methods, numba."""
    lines = [f"| topology | {' | '.join(OPTIONS)} | sampled classes |", "|---" * (len(OPTIONS) + 2) + "|"]
    for kind in KINDS:
        batch, cells = batch_of(kind), []
        for make in OPTIONS.values():
            given = make(batch)
            right = truth(kind, batch, **given)
            cells.append(cell([max(error(ours(kind, batch, d, m, **given), right) for m in METHODS) for d in DTYPES]))
        every = samplewise.sample_vocabulary(batch.targets, torch.tensor(LABELS), VOCAB, VOCAB, blank=batch.blank)
        right = truth(kind, batch)
        cells.append(cell([error(ours(kind, batch, d, "tiled", vocabulary=every), right) for d in DTYPES]))
        lines.append(f"| `{kind}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--insert", type=Path, help="the document whose parts <!-- results:NAME --> are filled")
    arguments = parser.parse_args()
    guided.LATTICE_WORK, guided.knows_nothing = 0, lambda *_: False  # bounds, however tiny the lattice is
    for name, table in (("methods", methods()), ("options", options())):
        print(table, end="\n\n")
        if arguments.insert:
            fill(arguments.insert, f"results:{name}", "results", table)


if __name__ == "__main__":
    main()
