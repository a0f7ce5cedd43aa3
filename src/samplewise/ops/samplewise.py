"""The method "samplewise": Algorithm 1 of arXiv 2211.16270.

The encodings come batched; joint, output layer and loss run on a few utterances at a time, without padding. Their logits are
held whole from the loss to the gradient, so nothing is computed twice, and are overwritten by the next utterances. Gradients of
the output layer add up, and those of the encodings are handed back for the batched backward of the encoders. How many
utterances are in flight follows from their lengths and the memory (the paper's dynamic parallelism).
"""

from __future__ import annotations

import torch
from torch import Tensor

from samplewise.kernels.layout import FRAMES, START, STRIDE
from samplewise.observation import report_group
from samplewise.ops.problem import Gradients, Group, Problem
from samplewise.ops.tiles import Tile, emission_pass, gradient_tile, no_emissions, run_lattice
from samplewise.planning.planner import Schedule


def run(problem: Problem, weights: Tensor, gradients: Gradients | None, schedule: Schedule, tolerance: float) -> Tensor:
    """Losses (B,) float64; the gradients of sum_b weights[b] loss[b] are added to `gradients`."""
    losses = weights.new_empty(len(problem.lengths.frames))
    wants_encodings = gradients is not None and gradients.wants_encodings
    tile = Tile.of(problem, max(schedule.group_nodes), wants_encodings)
    for (first, stop), exponentials in zip(schedule.groups, schedule.exponentials, strict=True):
        group = problem.group(first, stop, exponentials)
        run_group(problem, group, weights, losses, gradients, schedule, tile)
    return losses


def run_group(
    problem: Problem, group: Group, weights: Tensor, losses: Tensor, gradients: Gradients | None, schedule: Schedule, tile: Tile
) -> None:
    """Lines 4 to 12 for the utterances in flight; their tensors are freed when this returns."""
    node = torch.arange(group.nodes, device=problem.device)
    tile = tile.head(group.nodes)
    out = no_emissions(group.nodes, problem)
    emission_pass(problem, group, node, tile, out, fuse=False)  # lines 5 to 7
    occupancy = run_lattice(problem, group, out, weights, losses, gradients)
    if gradients is not None:  # lines 8 to 11
        clear_unusable(tile.z, group.table, losses[group.first : group.stop])
        rows = gradients.open(problem, group)
        gradient_tile(problem, group, node, tile, occupancy, gradients, rows)
        gradients.close(problem, group)
    report_group("samplewise", group.first, group.stop, group.nodes, active=None if gradients is None else group.nodes)


def clear_unusable(z: Tensor, table: Tensor, losses: Tensor) -> None:
    """Zero the joint encodings (N, D) of utterances without a finite loss: zero times NaN would reach everybody's weights."""
    for g in (~torch.isfinite(losses)).nonzero()[:, 0].tolist():
        start, stride, frames = (int(table[g, column]) for column in (START, STRIDE, FRAMES))
        z[start : start + frames * stride] = 0
