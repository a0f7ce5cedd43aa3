"""The method "guided": a sampled softmax says where the occupancy is, and only there the exact emissions are computed.

1. Guide (`guide.py`): every node's emissions, estimated from few classes.
2. Lattice; the smallest set of nodes that carries the occupancy.
3. Exact emissions on those of them that lack them. They replace the estimates; the other nodes keep theirs.
4. Lattice again. Where the occupancy outside the exact nodes exceeds the tolerance, the band grows: back to 2.
5. Gradient on the nodes of the last lattice.

Loss and gradients are exact up to the tolerance if the estimates outside the band do not make a path of weight less likely
than it is by more than the factor 1 / (tolerance MARGIN); the occupancy outside is measured with them. Where the band turns
out to be most of the lattice, the rest is made exact too, and the method is "tiled" at the price of the guide. Who wants no
"if" asks for "tiled".
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from samplewise.kernels.layout import FRAMES, STRIDE
from samplewise.observe import report_group
from samplewise.ops.guide import guide
from samplewise.ops.problem import Gradients, Group, Problem
from samplewise.ops.tiles import Emissions, Kept, Occupancy, Tile, emission_pass, gradient_pass
from samplewise.plan.planner import Schedule

MOST_ROUNDS = 6  # then every node is made exact
MARGIN = 1 / 64  # of the tolerance: what a band leaves out where the emissions are estimates
WIDE_BAND = 0.75  # a band of this share of the nodes gains nothing over all of them


@dataclass
class Band:
    """A group's emissions and occupancies, which of its nodes have exact ones, and the logits of these as far as they fit."""

    problem: Problem
    group: Group
    emissions: Emissions
    gamma_blank: Tensor  # (N,)
    gamma_label: Tensor  # (N,)
    exact: Tensor  # (N,) bool
    tile: Tile
    kept: Kept | None
    block_nodes: int

    @property
    def occupancy(self) -> Occupancy:
        return Occupancy(self.emissions.log_denominator, self.gamma_blank, self.gamma_label)

    def make_exact(self, nodes: Tensor | None) -> None:
        """Replace the estimates of `nodes` (None: all, where none is exact yet) by exact emissions."""
        emission_pass(self.problem, self.group, nodes, self.tile, self.emissions, self.kept)
        self.exact[slice(None) if nodes is None else nodes] = True

    def lattice(self, weights: Tensor, losses: Tensor) -> None:
        self.problem.lattice(
            self.emissions.lp_blank, self.emissions.lp_label, self.group.table, weights, losses, self.gamma_blank,
            self.gamma_label, self.block_nodes,
        )  # fmt: skip

    def select(self, losses: Tensor, tolerance: float) -> Tensor:
        return self.problem.kernels.select(self.gamma_blank, self.gamma_label, self.group.table, losses, tolerance)

    def share_outside(self) -> float:
        """The largest share of an utterance's occupancy that lies outside the exact nodes."""
        occupancy = (self.gamma_blank + self.gamma_label).abs_()
        sizes = self.group.table[:, FRAMES] * self.group.table[:, STRIDE]
        total = torch.segment_reduce(occupancy, "sum", lengths=sizes, unsafe=True)
        outside = torch.segment_reduce(occupancy.masked_fill_(self.exact, 0.0), "sum", lengths=sizes, unsafe=True)
        return float((outside / total).nan_to_num(0.0).max())


def run(problem: Problem, weights: Tensor, gradients: Gradients | None, schedule: Schedule, tolerance: float) -> Tensor:
    """Losses (B,) float64; the gradients of sum_b weights[b] loss[b] are added to `gradients`."""
    losses = weights.new_empty(len(problem.lengths.frames))
    tile = Tile.of(problem, schedule.tile_rows, gradients is not None and gradients.wants_encodings)
    kept = Kept(problem, schedule.kept_rows) if gradients is not None else None
    share = 0.0  # of the nodes that needed exact emissions, in the group before
    for first, stop in schedule.groups:
        group = problem.group(first, stop)
        share = run_group(problem, group, weights, losses, gradients, schedule, tolerance, tile, kept, share)
    return losses


def run_group(
    problem: Problem, group: Group, weights: Tensor, losses: Tensor, gradients: Gradients | None, schedule: Schedule,
    tolerance: float, tile: Tile, kept: Kept | None, share: float,
) -> float:  # fmt: skip
    """One group from the guide to the gradient; returns the share of its nodes that needed exact emissions."""
    here = slice(group.first, group.stop)
    gammas = torch.empty(2, group.nodes, dtype=problem.real, device=problem.device)
    exact = torch.zeros(group.nodes, dtype=torch.bool, device=problem.device)
    emissions = Emissions.empty(group.nodes, problem)
    if kept is not None:
        kept.clear()
    band = Band(problem, group, emissions, gammas[0], gammas[1], exact, tile, kept, schedule.block_nodes)
    if share < WIDE_BAND:
        guide(problem, group, emissions, kept)
        rounds, outside = settle(band, weights[here], losses[here], tolerance)
        share = float(exact.float().mean())
    else:
        rounds, outside = 0, 0.0
        band.make_exact(None)
        band.lattice(weights[here], losses[here])
    active = None
    if gradients is not None:
        active = band.select(losses[here], tolerance / 2)
        active = active[exact[active]]
        gradient_pass(problem, group, active, tile, band.occupancy, gradients, kept)
    report_group(
        "guided", group.first, group.stop, group.nodes, exact=exact, rounds=rounds, bound=outside,
        active=None if active is None else active.numel(),
    )  # fmt: skip
    return share


def settle(band: Band, weights: Tensor, losses: Tensor, tolerance: float) -> tuple[int, float]:
    """Grow the exact nodes until the occupancy outside them is within the tolerance. Returns rounds, and what is outside."""
    for rounds in range(1, MOST_ROUNDS + 1):
        band.lattice(weights, losses)
        outside = band.share_outside()
        if rounds > 1 and outside <= tolerance / 2:
            return rounds - 1, outside
        if rounds == 1 and not bool(torch.isfinite(losses).all()):
            break  # what is wrong with an utterance is said by its exact emissions, not by a guide
        missing = band.select(losses, tolerance * MARGIN)
        missing = missing[~band.exact[missing]]
        if int(band.exact.sum()) + missing.numel() > WIDE_BAND * band.group.nodes:
            del missing
            break
        band.make_exact(missing)
        del missing
    band.make_exact((~band.exact).nonzero()[:, 0])
    band.lattice(weights, losses)
    return rounds, 0.0
