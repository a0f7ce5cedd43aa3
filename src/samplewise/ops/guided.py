"""The method "guided": a sampled softmax says where the occupancy is, and only there the exact emissions are computed.

1. Guide: every node's emissions from few classes: blank, the utterance's labels, and K others drawn uniformly, whose terms of the
   denominator are weighted by the inverse of their inclusion probability.
2. Lattice; the smallest set of nodes that carries the occupancy.
3. Exact emissions on those of them that lack them. They replace the estimates; the other nodes keep theirs.
4. Lattice again. Where the occupancy outside the exact nodes exceeds the tolerance, the band grows: back to 2.
5. Gradient on the nodes of the last lattice.

Loss and gradients are exact up to the tolerance, and the occupancy outside is measured. Where the band turns out to be most of the
lattice, the rest is made exact too, and the method is "tiled" at the price of the guide.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from samplewise.kernels.layout import FRAMES, STRIDE
from samplewise.ops.problem import Gradients, Group, Problem
from samplewise.ops.tiles import (
    Emissions,
    Occupancy,
    Workspace,
    emission_pass,
    emission_tile,
    forward_tile,
    gradient_pass,
    gradient_tile,
)
from samplewise.plan.planner import Schedule, guide_classes

logger = logging.getLogger("samplewise")

MOST_ROUNDS = 6  # then every node is made exact
WIDE_BAND = 0.75  # a band of this share of the nodes gains nothing over all of them


@dataclass
class Band:
    """The emissions of a group, which of its nodes have exact ones, and the logits of these while they all fit the tile."""

    emissions: Emissions
    gamma_blank: Tensor
    gamma_label: Tensor
    exact: Tensor  # (N,) bool
    kept: list[Tensor]  # nodes whose z and h are still in the workspace, in its order
    fits: bool = True

    @classmethod
    def empty(cls, nodes: int, problem: Problem) -> Band:
        gammas = torch.empty(2, nodes, dtype=problem.real, device=problem.device)
        exact = torch.zeros(nodes, dtype=torch.bool, device=problem.device)
        return cls(Emissions.empty(nodes, problem), gammas[0], gammas[1], exact, [])

    @property
    def occupancy(self) -> Occupancy:
        return Occupancy(self.emissions.log_denominator, self.gamma_blank, self.gamma_label)


def run(problem: Problem, weights: Tensor, gradients: Gradients | None, schedule: Schedule, tolerance: float) -> Tensor:
    """Losses (B,) float64; the gradients of sum_b weights[b] loss[b] are added to `gradients`."""
    losses = weights.new_empty(len(problem.lengths.frames))
    rows = min(schedule.tile_rows, max(schedule.group_nodes))
    workspace = Workspace.of(problem, rows, problem.weight.shape[0], gradients is not None and gradients.wants_encodings)
    share = 0.0  # of the nodes that needed exact emissions, in the group before
    for first, stop in schedule.groups:
        group = problem.group(first, stop)
        band = Band.empty(group.nodes, problem)
        here = slice(first, stop)
        if share < WIDE_BAND:
            guide(problem, group, band.emissions, schedule.guide_rows)
            rounds, outside = settle(problem, group, band, weights[here], losses[here], workspace, schedule, tolerance)
            share = float(band.exact.float().mean())
            logger.debug(
                "guided: utterances %d to %d, active share %.4f, %d rounds, occupancy outside %.1e",
                first, stop - 1, share, rounds, outside,
            )  # fmt: skip
        else:
            emission_pass(problem, group, workspace, band.emissions)
            band.exact.fill_(True)
            band.fits = False
            _lattice(problem, group, band, weights[here], losses[here], schedule)
        if gradients is not None:
            active = problem.kernels.select(band.gamma_blank, band.gamma_label, group.table, losses[here], tolerance / 2)
            active = active[band.exact[active]]
            finish(problem, group, band, active, workspace, gradients)
    return losses


def guide(problem: Problem, group: Group, out: Emissions, rows: int) -> None:
    """Estimated emissions of every node, utterance by utterance, each with classes of its own."""
    generator = torch.Generator(device=problem.device).manual_seed(0)
    start = 0
    for b in range(group.first, group.stop):
        one = problem.group(b, b + 1)
        few, targets = sampled(problem, b, generator)
        workspace = Workspace.of(few, min(rows, one.nodes), few.weight.shape[0], gradient=False)
        here = slice(start, start + one.nodes)
        part = Emissions(out.log_denominator[here], out.lp_blank[here], out.lp_label[here])
        emission_pass(few, replace(one, targets=targets), workspace, part)
        start += one.nodes


def sampled(problem: Problem, b: int, generator: torch.Generator) -> tuple[Problem, Tensor]:
    """The problem of utterance b over few classes, and its labels as columns of them."""
    classes = problem.weight.shape[0]
    labels = problem.targets[b, : problem.lengths.labels[b]]
    always = torch.cat((labels.new_tensor([problem.blank]), labels)).unique()
    others = torch.ones(classes, dtype=torch.bool, device=problem.device)
    others[always] = False
    others = others.nonzero()[:, 0]
    count = min(guide_classes(classes), others.numel())
    picked = others[torch.randperm(others.numel(), generator=generator, device=problem.device)[:count]]
    chosen = torch.cat((always, picked))
    bias = problem.bias[chosen]
    if count:
        bias[always.numel() :] += torch.log(torch.tensor(others.numel() / count, dtype=problem.real))
    column = torch.zeros(classes, dtype=torch.int64, device=problem.device)
    column[chosen] = torch.arange(chosen.numel(), device=problem.device)
    targets = torch.nn.functional.pad(column[labels], (0, problem.targets.shape[1] - labels.numel()))
    few = replace(problem, weight=problem.weight[chosen], bias=bias, blank=int(column[problem.blank]))
    return few, targets


def settle(
    problem: Problem, group: Group, band: Band, weights: Tensor, losses: Tensor, workspace: Workspace, schedule: Schedule,
    tolerance: float,
) -> tuple[int, float]:  # fmt: skip
    """Grow the exact nodes until the occupancy outside them is within the tolerance. Returns rounds and that occupancy's share."""
    for rounds in range(1, MOST_ROUNDS + 1):
        _lattice(problem, group, band, weights, losses, schedule)
        outside = _share_outside(group, band)
        if rounds > 1 and outside <= tolerance / 2:
            return rounds - 1, outside
        chosen = problem.kernels.select(band.gamma_blank, band.gamma_label, group.table, losses, tolerance / 4)
        missing = chosen[~band.exact[chosen]]
        if int(band.exact.sum()) + missing.numel() > WIDE_BAND * group.nodes:
            break
        make_exact(problem, group, band, missing, workspace)
    make_exact(problem, group, band, (~band.exact).nonzero()[:, 0], workspace)
    _lattice(problem, group, band, weights, losses, schedule)
    return rounds, 0.0


def make_exact(problem: Problem, group: Group, band: Band, nodes: Tensor, workspace: Workspace) -> None:
    """Replace the estimates of `nodes` by exact emissions, keeping z and h where all exact nodes fit the tile."""
    held = sum(part.numel() for part in band.kept)
    band.fits = band.fits and held + nodes.numel() <= workspace.rows
    if band.fits:
        pieces = [(nodes, workspace.part(held, held + nodes.numel()))]
        band.kept.append(nodes)
    else:
        pieces = [(node, workspace.head(node.numel())) for node in nodes.split(workspace.rows)]
    for node, tile in pieces:
        if node.numel():
            forward_tile(problem, group, node, tile)
            emission_tile(problem, node, tile, band.emissions)
    band.exact[nodes] = True


def finish(problem: Problem, group: Group, band: Band, active: Tensor, workspace: Workspace, gradients: Gradients) -> None:
    """The gradient pass: from the logits that are still there, or over the active nodes again."""
    if not band.fits:
        gradient_pass(problem, group, active, workspace, band.occupancy, gradients)
        return
    node = torch.cat(band.kept)
    if node.numel() == 0:
        return
    rows = gradients.open(problem, group)
    gradient_tile(problem, group, node, workspace.head(node.numel()), band.occupancy, gradients, rows)
    gradients.close(problem, group)


def _lattice(problem: Problem, group: Group, band: Band, weights: Tensor, losses: Tensor, schedule: Schedule) -> None:
    emissions = (band.emissions.lp_blank, band.emissions.lp_label)
    problem.kernels.lattice(
        *emissions, group.table, weights, losses, band.gamma_blank, band.gamma_label, schedule.block_nodes
    )


def _share_outside(group: Group, band: Band) -> float:
    """The largest share of an utterance's occupancy that lies outside the exact nodes."""
    occupancy = (band.gamma_blank + band.gamma_label).abs()
    sizes = group.table[:, FRAMES] * group.table[:, STRIDE]
    total = torch.segment_reduce(occupancy, "sum", lengths=sizes)
    outside = torch.segment_reduce(occupancy.masked_fill(band.exact, 0.0), "sum", lengths=sizes)
    return float((outside / total).nan_to_num(0.0).max())
