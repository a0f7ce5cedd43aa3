"""Say where the time of a lattice node goes: nanoseconds a node of each kernel and of the matrix products, for several V.

Usage: python scripts/time_of_a_node.py [--threads N] [--insert docs/performance.md]

Joints of trained models (V=17, 28, 2048: see docs/benchmarks.md, suite "trained") and random weights (V=256). Kernels are timed
from outside, so what Python and small tensors take is "the rest". CPU time of the calling thread, so use one thread (the
default) for figures that add up; the least of several steps.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import torch

import samplewise
from documents import fill
from samplewise.bench.cases import Case, trained
from samplewise.bench.workloads import make_workload
from samplewise.kernels import numba

KERNELS = ("bounds", "lattice", "select", "locate", "joint", "emission", "emission_gradient", "joint_gradient", "exponentials")
ROWS = (*KERNELS, "matrix products", "the rest")


@contextlib.contextmanager
def timed(spent: collections.Counter[str]) -> Iterator[None]:
    """Add up what the kernels and torch.mm take meanwhile."""
    before = [(numba, name, name) for name in KERNELS]
    before += [(torch, "mm", "matrix products"), (torch.Tensor, "addmm_", "matrix products")]
    kept = [(module, name, getattr(module, name)) for module, name, _ in before]

    def watched(right, row):
        def call(*arguments, **options):
            start = time.thread_time()
            try:
                return right(*arguments, **options)
            finally:
                spent[row] += time.thread_time() - start

        return call

    try:
        for (module, name, row), (_, _, right) in zip(before, kept, strict=True):
            setattr(module, name, watched(right, row))
        yield
    finally:
        for module, name, right in kept:
            setattr(module, name, right)


def measure(case: Case, method: str, steps: int) -> tuple[dict[str, float], str]:
    """Nanoseconds a node by row, and what ran."""
    workload = make_workload(case).asking(True)
    best: dict[str, float] = {}
    for _ in range(steps + 1):  # the first one compiles
        spent: collections.Counter[str] = collections.Counter()
        start = time.thread_time()
        with samplewise.observe() as seen, timed(spent):
            loss = samplewise.transducer_loss(*workload.learned, *workload.integers, reduction="sum", method=method)
            torch.autograd.grad(loss, workload.learned)
        whole = time.thread_time() - start
        spent["the rest"] = whole - sum(spent.values())
        if not best or whole < best["all"]:
            best = {row: spent[row] for row in ROWS} | {"all": whole}
    return {row: 1e9 * seconds / case.nodes for row, seconds in best.items()}, "/".join(seen.methods)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument(
        "--insert", type=Path, help="the document whose part between <!-- results:node --> and <!-- /results --> is filled"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    wanted = ("digits_step500", "an4_characters_step1180", "bible_step3000")
    cases = [case for case in trained() if case.name in wanted]
    cases.insert(2, Case("random", "random", 4, 300, 60, 256, 128))
    columns = [(case, method) for case in cases for method in ("auto", "tiled")]
    found = [measure(case, method, arguments.steps) for case, method in columns]
    head = [
        f"{case.name}, V={case.classes}, `{method}` ({ran})" for (case, method), (_, ran) in zip(columns, found, strict=True)
    ]
    lines = [f"| ns a node | {' | '.join(head)} |", "|---" * (len(head) + 1) + "|"]
    for row in (*ROWS, "all"):
        lines.append(f"| {row} | {' | '.join(f'{figures[row]:.3g}' for figures, _ in found)} |")
    table = "\n".join(lines)
    print(table)
    if arguments.insert:
        fill(arguments.insert, "results:node", "results", table)


if __name__ == "__main__":
    main()
