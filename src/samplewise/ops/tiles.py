"""Two of the three passes over nodes: emission and gradient, tile by tile. The third, the lattice, is a kernel alone.

A tile is R rows of the group's node list. Its joint encodings z (R, D), its logits h (R, C) and dz (R, D) live in one workspace
that the next tile overwrites; h becomes dL/dh in place. Matrix products are PyTorch's; everything around them is a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from samplewise.ops.problem import Gradients, Group, Problem


@dataclass(frozen=True)
class Emissions:
    """Three floats a node of a group: log softmax denominator and the log-probabilities of blank and next label, each (N,)."""

    log_denominator: Tensor
    lp_blank: Tensor
    lp_label: Tensor

    @classmethod
    def empty(cls, nodes: int, problem: Problem) -> Emissions:
        return cls(*(torch.empty(nodes, dtype=problem.real, device=problem.device) for _ in range(3)))


class Occupancy(NamedTuple):
    """What the gradient of a node is made of: its log denominator and the posteriors of its two arcs, each (N,)."""

    log_denominator: Tensor
    gamma_blank: Tensor
    gamma_label: Tensor


@dataclass(frozen=True)
class Workspace:
    """The buffers of one tile of at most R rows."""

    z: Tensor  # (R, D)
    h: Tensor  # (R, C)
    dz: Tensor  # (R, D), or (0, D) where no gradient of the encodings is wanted
    frame: Tensor  # (R,)
    token: Tensor  # (R,)
    label: Tensor  # (R,)

    @classmethod
    def of(cls, problem: Problem, rows: int, classes: int, gradient: bool) -> Workspace:
        dim = problem.weight.shape[1]

        def floats(height: int, width: int) -> Tensor:
            return torch.empty(height, width, dtype=problem.compute, device=problem.device)

        index = torch.empty(3, rows, dtype=torch.int64, device=problem.device)
        return cls(floats(rows, dim), floats(rows, classes), floats(rows if gradient else 0, dim), *index)

    @property
    def rows(self) -> int:
        return self.z.shape[0]

    def head(self, rows: int) -> Workspace:
        """The same buffers for a last tile of fewer rows."""
        return self if rows == self.rows else self.part(0, rows)

    def part(self, first: int, stop: int) -> Workspace:
        """Rows first..stop-1 of the buffers."""
        buffers = (self.z, self.h, self.dz, self.frame, self.token, self.label)
        return Workspace(*(buffer[first:stop] for buffer in buffers))


def forward_tile(problem: Problem, group: Group, node: Tensor, tile: Workspace) -> None:
    """z and h of the tile's nodes; h is without its bias, which the kernels add where they read it."""
    kernels = problem.kernels
    kernels.locate(node, group.table, group.targets, tile.frame, tile.token, tile.label)
    kernels.joint(group.encoder_rows, group.predictor_rows, tile.frame, tile.token, problem.activation, tile.z)
    torch.mm(tile.z, problem.weight.t(), out=tile.h)  # (R, D) (D, V)


def emission_tile(problem: Problem, node: Tensor, tile: Workspace, out: Emissions) -> None:
    problem.kernels.emission(
        tile.h, problem.bias, node, tile.label, problem.blank, out.log_denominator, out.lp_blank, out.lp_label
    )


def gradient_tile(
    problem: Problem, group: Group, node: Tensor, tile: Workspace, occupancy: Occupancy, gradients: Gradients,
    rows: tuple[Tensor, Tensor],
) -> None:  # fmt: skip
    """h becomes dh; then dW += dh^T z, db += sum dh, dz = dh W, and dz goes on to the rows of the encodings."""
    problem.kernels.emission_gradient(tile.h, problem.bias, node, tile.label, problem.blank, *occupancy, gradients.bias)
    if gradients.weight is not None:
        if problem.compute == problem.real:
            gradients.weight.addmm_(tile.h.t(), tile.z)  # (V, R) (R, D)
        else:  # one rounding a tile, and the sum over tiles in the real dtype
            gradients.weight += torch.mm(tile.h.t(), tile.z)
    if gradients.wants_encodings:
        torch.mm(tile.h, problem.weight, out=tile.dz)  # (R, V) (V, D)
        problem.kernels.joint_gradient(
            tile.dz, tile.z, group.encoder_rows, group.predictor_rows, tile.frame, tile.token, problem.activation, *rows
        )


def emission_pass(problem: Problem, group: Group, workspace: Workspace, out: Emissions) -> None:
    """Emissions of every node of the group."""
    for start in range(0, group.nodes, workspace.rows):
        stop = min(start + workspace.rows, group.nodes)
        node = torch.arange(start, stop, device=problem.device)
        tile = workspace.head(stop - start)
        forward_tile(problem, group, node, tile)
        emission_tile(problem, node, tile, out)


def gradient_pass(
    problem: Problem, group: Group, active: Tensor, workspace: Workspace, occupancy: Occupancy, gradients: Gradients
) -> None:
    """Gradients from the active nodes (A,), packed into full tiles across utterances."""
    rows = gradients.open(problem, group)
    for start in range(0, active.numel(), workspace.rows):
        node = active[start : start + workspace.rows]
        tile = workspace.head(node.numel())
        forward_tile(problem, group, node, tile)
        gradient_tile(problem, group, node, tile, occupancy, gradients, rows)
    gradients.close(problem, group)


def run_lattice(
    problem: Problem, group: Group, out: Emissions, weights: Tensor, losses: Tensor, block_nodes: int, gradient: bool
) -> Occupancy:
    """The group's part of losses (B,), and the emissions turned into occupancies in place where gradients are wanted."""
    here = slice(group.first, group.stop)
    gammas = (out.lp_blank, out.lp_label) if gradient else (None, None)
    problem.kernels.lattice(out.lp_blank, out.lp_label, group.table, weights[here], losses[here], *gammas, block_nodes)
    return Occupancy(out.log_denominator, out.lp_blank, out.lp_label)
