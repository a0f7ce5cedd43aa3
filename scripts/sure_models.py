"""What the default tolerance leaves out of the gradients of sure models: errors against float64, and the active share.

Usage: python scripts/sure_models.py [--insert docs/methods.md]

Joints of trained models (docs/benchmarks.md, suite "trained"), float32, method "tiled". "Without the rule" leaves out a share
of the occupancy whatever the loss is; tolerance 0 leaves out nothing, so its errors are those of rounding.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import samplewise
from documents import fill
from samplewise.bench.cases import trained
from samplewise.bench.workloads import make_workload
from samplewise.ops import problem

SMALL = 100  # classes, up to which float64 is quick


def gradients(case, dtype: torch.dtype, **options) -> tuple[list[torch.Tensor], float]:
    """Of encodings, output layer and bias, float64; and the active share."""
    workload = make_workload(case)
    leaves = [tensor.to(dtype).requires_grad_() for tensor in workload.learned]
    with samplewise.observe() as seen:
        loss = samplewise.transducer_loss(*leaves, *workload.integers, reduction="sum", method="tiled", **options)
        found = torch.autograd.grad(loss, leaves)
    return [gradient.double() for gradient in found], seen.active_share or 0.0


def worst(got: list[torch.Tensor], right: list[torch.Tensor]) -> str:
    """The largest error over the largest element, of both encodings, and of output layer and bias."""
    errors = [float((a - b).abs().max() / b.abs().max()) for a, b in zip(got, right, strict=True)]
    return f"{max(errors[:2]):.1e}, {max(errors[2:]):.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--insert", type=Path, help="the document whose part <!-- results:sure --> is filled")
    arguments = parser.parse_args()
    lines = ["| joint | nats a frame or label | active share | without the rule | errors | without the rule | at tolerance 0 |"]
    lines += ["|---" * 7 + "|"]
    surest = problem.SUREST
    for case in (case for case in trained() if case.classes <= SMALL):
        right, _ = gradients(case, torch.float64, tolerance=0.0)
        with torch.no_grad():
            workload = make_workload(case)
            losses = samplewise.transducer_loss(*workload.learned, *workload.integers, reduction="none")
        rate = float((losses / (workload.encoder_lengths + workload.target_lengths)).min())
        ours, active = gradients(case, torch.float32)
        problem.SUREST = 1.0
        without, more = gradients(case, torch.float32)
        problem.SUREST = surest
        nothing, _ = gradients(case, torch.float32, tolerance=0.0)
        errors = " | ".join(worst(found, right) for found in (ours, without, nothing))
        lines.append(f"| {case.name} | {rate:.2g} | {active:.2%} | {more:.2%} | {errors} |")
    table = "\n".join(lines)
    print(table)
    if arguments.insert:
        fill(arguments.insert, "results:sure", "results", table)


if __name__ == "__main__":
    main()
