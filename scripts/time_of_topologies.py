"""What the general lattice costs: nanoseconds a node, one thread, of every topology's lattice and of the whole loss.

Usage: OMP_WAIT_POLICY=PASSIVE python scripts/time_of_topologies.py [--insert docs/topologies.md]

Lattice: forward alone, and with posteriors. Loss: loss and all gradients of random encodings and weights, V = 1024, D = 512,
method "tiled", the topologies one after the other in every round; the least of the rounds. What a node takes depends on the
share of the nodes that carry the occupancy, so that is said, too, and the time at tolerance 0, where it is all of them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch

import samplewise
from documents import fill
from samplewise import topology
from samplewise.kernels import numba
from samplewise.kernels.layout import packed_table

FRAMES, LABELS, BATCH, VOCAB, DIM, ROUNDS = 200, 40, 2, 1024, 512, 5
KINDS = (
    topology.regular(), topology.modified(), topology.hat(), topology.multi_blank((2, 4, 8)), topology.tdt((0, 1, 2, 3, 4))
)  # fmt: skip
NODES = BATCH * FRAMES * (LABELS + 1)


def blank_of(kind: topology.Topology) -> int:
    return VOCAB - 1 if kind.name == "multi_blank" else 0


def lattices(kind: topology.Topology) -> list[Callable[[], None]]:
    """The general kernel, forward and with posteriors; of "regular" its own, too."""
    table, _ = packed_table([FRAMES] * BATCH, [LABELS] * BATCH, FRAMES, LABELS + 1, LABELS, torch.device("cpu"))
    entries = torch.randn(len(kind.entries), NODES).sub(2.0)
    gammas, weights = torch.empty_like(entries), torch.ones(BATCH, dtype=torch.float64)
    losses, form = torch.empty_like(weights), kind.bind(VOCAB + kind.extra, blank_of(kind))
    found = [
        lambda: numba.arcs_lattice(entries, table, form, weights, losses, None),
        lambda: numba.arcs_lattice(entries, table, form, weights, losses, gammas),
    ]
    if kind.name == "regular":
        found.append(lambda: numba.lattice(entries[0], entries[1], table, weights, losses, gammas[0], gammas[1]))
    return found


def losses(kind: topology.Topology) -> list[Callable[[], float | None]]:
    """Loss and gradients by the default tolerance, and by none; what they return is the active share."""
    torch.manual_seed(0)
    learned = [torch.randn(BATCH, FRAMES, DIM), torch.randn(BATCH, LABELS + 1, DIM)]
    learned += [0.1 * torch.randn(VOCAB + kind.extra, DIM), torch.zeros(VOCAB + kind.extra)]
    for tensor in learned:
        tensor.requires_grad_()
    integers = torch.randint(1, VOCAB - 10, (BATCH, LABELS)), torch.full((BATCH,), FRAMES), torch.full((BATCH,), LABELS)

    def run(tolerance: float | None) -> float | None:
        with samplewise.observe() as seen:
            loss = samplewise.transducer_loss(
                *learned, *integers, blank=blank_of(kind), topology=kind, method="tiled", tolerance=tolerance
            )
            torch.autograd.grad(loss, learned)
        return seen.active_share

    return [lambda: run(None), lambda: run(0.0)]


def least(functions: list[Callable[[], object]]) -> list[float]:
    """Nanoseconds a node of each, the least of the rounds, in which they take turns; the first call does not count."""
    for function in functions:
        function()
    took = [float("inf")] * len(functions)
    for _ in range(ROUNDS):
        for i, function in enumerate(functions):
            start = time.thread_time()
            function()
            took[i] = min(took[i], (time.thread_time() - start) / NODES * 1e9)
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--insert", type=Path, help="the document whose part <!-- results:time --> is filled")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    by_lattice = [least(lattices(kind)) for kind in KINDS]
    whole = [losses(kind) for kind in KINDS]
    shares = [runs[0]() for runs in whole]
    by_loss = least([run for runs in whole for run in runs])
    lines = [
        "| topology | lattice forward | with posteriors | loss and gradients | active share | at tolerance 0 | of regular |"
    ]
    lines.append("|---" * 7 + "|")
    for i, (kind, lattice) in enumerate(zip(KINDS, by_lattice, strict=True)):
        usual, every = by_loss[2 * i : 2 * i + 2]
        own = f" ({lattice[2]:.0f} by its own kernel)" if len(lattice) > 2 else ""
        lines.append(
            f"| `{kind}` | {lattice[0]:.0f} | {lattice[1]:.0f}{own} | {usual:.0f} | {shares[i]:.0%} | {every:.0f} "
            f"| {every / by_loss[1]:.2f}× |"
        )
    table = "\n".join(lines)
    print(table)
    if arguments.insert:
        fill(arguments.insert, "results:time", "results", table)


if __name__ == "__main__":
    main()
