"""The method "guided": upper bounds of the emissions say where the occupancy can be; only there the exact ones are computed.

1. Bounds of every node's emissions, from a few classes (`bounds.py`).
2. Lattice; the smallest set of nodes outside of which little occupancy is.
3. Exact emissions on those of them that lack them; the others keep their bounds.
4. Lattice again. Where the occupancy outside the exact nodes, summed, exceeds a quarter of the tolerance: back to 2.
5. Gradient over the exact nodes that carry the occupancy of the last lattice.

Why the answer is right, for any weights: let M be the mass of all paths under these mixed emissions, M_in that of the paths
that stay within the exact nodes, P the true probability. Inside, mixed emissions are the true ones; outside they are upper
bounds: so M_in <= P <= M. A path that leaves the exact nodes passes a node outside, so M - M_in is at most M times the
occupancy outside, summed. So neither the loss (in nats) nor any posterior is off by more than that sum, which is measured.
Rounding is part of it: bounds have slack for it (`bounds.Slack`). Where the set would be most of the lattice, every node is
made exact.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from samplewise.kernels.layout import FRAMES, LABELS, START, STRIDE
from samplewise.observe import report_group
from samplewise.ops import buffers, tiled
from samplewise.ops.bounds import Whole, bound
from samplewise.ops.problem import Gradients, Group, Problem
from samplewise.ops.tiles import Emissions, Kept, Occupancy, Tile, emission_pass, gradient_pass
from samplewise.plan.planner import WIDE, Schedule

OUTSIDE = 1 / 4  # of the tolerance: what the paths that leave the exact nodes may have
LEFT_OUT = 3 / 4  # of the tolerance: what the gradients leave out
MOST_ROUNDS = 6  # then every node is made exact
MARGIN = 1 / 8  # of what may be outside: what a selection leaves out where emissions are bounds


@dataclass
class Band:
    """A group's emissions, exact at some nodes and bounds elsewhere, and the occupancies under them, each (N,)."""

    problem: Problem
    group: Group
    tile: Tile
    kept: Kept | None
    lp_blank: Tensor
    lp_label: Tensor
    gamma_blank: Tensor
    gamma_label: Tensor
    exact: list[tuple[Tensor, Emissions]] = field(default_factory=list)  # ascending nodes (K,), and theirs, of every round

    @classmethod
    def of(cls, problem: Problem, group: Group, tile: Tile, kept: Kept | None) -> Band:
        floats = buffers.empty((4, group.nodes), problem.real, problem.device)
        return cls(problem, group, tile, kept, *floats)

    def make_exact(self, nodes: Tensor) -> None:
        found = Emissions.empty(nodes.numel(), self.problem)
        emission_pass(self.problem, self.group, nodes, self.tile, found, self.kept, packed=True)
        self.lp_blank[nodes], self.lp_label[nodes] = found.lp_blank, found.lp_label
        self.exact.append((nodes, found))

    def lattice(self, losses: Tensor) -> None:
        """Losses (G,), and the posteriors of both arcs, under the emissions as they are."""
        self.problem.kernels.lattice(
            self.lp_blank, self.lp_label, self.group.table, torch.ones_like(losses), losses,
            self.gamma_blank, self.gamma_label,
        )  # fmt: skip

    def outside(self) -> Tensor:
        """(G,) the occupancy outside the exact nodes, summed: no less than the share of the paths that leave these."""
        occupancy = self.gamma_blank + self.gamma_label
        for nodes, _ in self.exact:
            occupancy.index_fill_(0, nodes, 0.0)
        sizes = self.group.table[:, FRAMES] * self.group.table[:, STRIDE]
        return torch.segment_reduce(occupancy, "sum", lengths=sizes, unsafe=True)

    def missing(self, losses: Tensor, outside: float) -> Tensor:
        """Nodes that are not exact and are among the fewest that leave so much occupancy outside."""
        longest = int(
            (self.group.table[:, FRAMES] + self.group.table[:, LABELS]).max()
        )  # what an utterance's occupancies sum to
        found = self.problem.kernels.select(self.gamma_blank, self.gamma_label, self.group.table, losses, outside / longest)
        if not self.exact:
            return found
        lacks = torch.ones(self.group.nodes, dtype=torch.bool, device=found.device)
        for nodes, _ in self.exact:
            lacks[nodes] = False
        return found[lacks[found]]

    @property
    def exact_nodes(self) -> int:
        return sum(nodes.numel() for nodes, _ in self.exact)


def run(problem: Problem, weights: Tensor, gradients: Gradients | None, schedule: Schedule, tolerance: float) -> Tensor:
    """Losses (B,) float64; the gradients of sum_b weights[b] loss[b] are added to `gradients`."""
    losses = weights.new_empty(len(problem.lengths.frames))
    tile = Tile.of(problem, schedule.tile_rows, gradients is not None and gradients.wants_encodings)
    kept = Kept(problem, schedule.kept_rows) if gradients is not None else None
    whole = Whole.of(problem)
    for (first, stop), exponentials in zip(schedule.groups, schedule.exponentials, strict=True):
        group = problem.group(first, stop, exponentials)
        if not run_group(problem, group, whole, weights, losses, gradients, tolerance, tile, kept):
            tiled.run_group(problem, group, weights, losses, gradients, schedule, tolerance * LEFT_OUT, tile, kept)
    return losses


def run_group(
    problem: Problem, group: Group, whole: Whole, weights: Tensor, losses: Tensor, gradients: Gradients | None,
    tolerance: float, tile: Tile, kept: Kept | None,
) -> bool:  # fmt: skip
    """One group from the bounds to the gradient; False where it is better, or necessary, to make every node exact."""
    here = slice(group.first, group.stop)
    if kept is not None:
        kept.clear()
    band = Band.of(problem, group, tile, kept)
    bound(problem, group, whole, tile, band.lp_blank, band.lp_label)
    settled = settle(band, losses[here], tolerance * OUTSIDE / problem.label_factor)
    if settled is None:
        return False
    active = None
    if gradients is not None:
        active = gradient(band, weights[here], losses[here], gradients, tolerance * LEFT_OUT)
    report_group(
        "guided", group.first, group.stop, group.nodes, exact=band.exact_nodes, active=active, rounds=settled[0],
        bound=settled[1],
    )  # fmt: skip
    return True


def settle(band: Band, losses: Tensor, limit: float) -> tuple[int, float] | None:
    """Grow the exact nodes until the occupancy outside them, summed, is within the limit. Returns rounds and that sum, or None
    where every node should be exact."""
    for rounds in range(MOST_ROUNDS + 1):
        band.lattice(losses)
        if not bool(torch.isfinite(losses).all()):
            return None  # what is wrong with an utterance is said by its exact emissions
        if band.exact and (outside := float(band.outside().max())) <= limit:
            return rounds, outside
        missing = band.missing(losses, limit * MARGIN)
        if band.exact_nodes + missing.numel() > WIDE * band.group.nodes:
            return None
        band.make_exact(missing)
    return None


def gradient(band: Band, weights: Tensor, losses: Tensor, gradients: Gradients, tolerance: float) -> int:
    """Gradients from the exact nodes that carry all but the tolerance of the occupancy; returns how many they are."""
    problem, group = band.problem, band.group
    if problem.label_factor != 1.0:
        band.gamma_label.mul_(problem.label_factor)
    chosen = problem.kernels.select(band.gamma_blank, band.gamma_label, group.table, losses, tolerance)
    active, denominator = [], []
    for nodes, emissions in band.exact:
        slot = torch.searchsorted(nodes, chosen).clamp_(max=nodes.numel() - 1)
        slot = slot[nodes[slot] == chosen]
        active.append(nodes[slot])
        denominator.append(emissions.log_denominator[slot])
    node, order = torch.cat(active).sort()
    weight = weights[torch.searchsorted(group.table[:, START].contiguous(), node, right=True) - 1].to(problem.real)
    occupancy = Occupancy(torch.cat(denominator)[order], band.gamma_blank[node] * weight, band.gamma_label[node] * weight)
    gradient_pass(problem, group, node, band.tile, occupancy, gradients, band.kept, packed=True)
    return node.numel()
