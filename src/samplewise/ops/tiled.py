"""The method "tiled": three passes over nodes, no utterance's logits ever whole.

Emission (every node, three floats kept), lattice (the floats become occupancies in place), gradient (only the nodes that carry
the occupancy; z and h computed again).
"""

from __future__ import annotations

from torch import Tensor

from samplewise.ops.problem import Gradients, Problem
from samplewise.ops.tiles import Emissions, Workspace, emission_pass, gradient_pass, run_lattice
from samplewise.plan.planner import Schedule


def run(problem: Problem, weights: Tensor, gradients: Gradients | None, schedule: Schedule, tolerance: float) -> Tensor:
    """Losses (B,) float64; the gradients of sum_b weights[b] loss[b] are added to `gradients`."""
    losses = weights.new_empty(len(problem.lengths.frames))
    rows = min(schedule.tile_rows, max(schedule.group_nodes))
    workspace = Workspace.of(problem, rows, problem.weight.shape[0], gradients is not None and gradients.wants_encodings)
    for first, stop in schedule.groups:
        group = problem.group(first, stop)
        out = Emissions.empty(group.nodes, problem)
        emission_pass(problem, group, workspace, out)
        occupancy = run_lattice(problem, group, out, weights, losses, schedule.block_nodes, gradients is not None)
        if gradients is not None:
            active = problem.kernels.select(*occupancy[1:], group.table, losses[first:stop], tolerance)
            gradient_pass(problem, group, active, workspace, occupancy, gradients)
    return losses
