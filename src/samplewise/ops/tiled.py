"""The method "tiled": three passes over nodes, no more logits at a time than the workspace holds.

Emission (every node, three floats kept), lattice (the floats become occupancies in place), gradient (only the nodes that carry
the occupancy). Where a group's z and h fit the workspace they are kept between the passes; elsewhere the gradient pass computes
those of the active nodes again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from samplewise.observation import report_group
from samplewise.ops.lattices import Emissions, Occupancy
from samplewise.ops.pieces import Edges, Piece, pieces_of
from samplewise.ops.problem import Gradients, Group, Problem
from samplewise.ops.tiles import Kept, Tile, emission_pass, gradient_pass, no_emissions, run_lattice, select
from samplewise.planning.planner import Schedule


def run(problem: Problem, weights: Tensor, gradients: Gradients | None, schedule: Schedule, tolerance: float) -> Tensor:
    """Losses (B,) float64; the gradients of sum_b weights[b] loss[b] are added to `gradients`."""
    losses = weights.new_empty(len(problem.lengths.frames))
    tile = Tile.of(problem, schedule.tile_rows, gradients is not None and gradients.wants_encodings)
    kept = Kept(problem, schedule.kept_rows) if gradients is not None else None
    for (first, stop), exponentials in zip(schedule.groups, schedule.exponentials, strict=True):
        group = problem.group(first, stop, exponentials)
        run_group(problem, group, weights, losses, gradients, schedule, tolerance, tile, kept)
    return losses


def run_group(
    problem: Problem, group: Group, weights: Tensor, losses: Tensor, gradients: Gradients | None, schedule: Schedule,
    tolerance: float, tile: Tile, kept: Kept | None,
) -> None:  # fmt: skip
    """The three passes over one group. What they hold is gone when the next group begins."""
    if kept is not None:
        kept.clear()
    pieces = pieces_of(group, schedule.whole)
    if len(pieces) > 1:
        run_pieces(problem, group, pieces, weights, losses, gradients, tolerance, tile)
        return
    out = no_emissions(group.nodes, problem)
    nodes = problem.reachable(group)
    if nodes is not None:
        out.entries.fill_(-torch.inf)
    emission_pass(problem, group, nodes, tile, out, kept)
    occupancy = run_lattice(problem, group, out, weights, losses, gradients)
    active = None
    if gradients is not None:
        here = losses[group.first : group.stop]
        share = problem.share(tolerance, group, here)
        active = select(problem, occupancy.gammas, group.table, here, share)
        gradient_pass(problem, group, active, tile, occupancy, gradients, kept)
    active_nodes = None if active is None else active.numel()
    report_group("tiled", group.first, group.stop, group.nodes, active=active_nodes)


def run_pieces(
    problem: Problem, group: Group, pieces: list[Piece], weights: Tensor, losses: Tensor, gradients: Gradients | None,
    tolerance: float, tile: Tile,
) -> None:  # fmt: skip
    """The passes over one long utterance, whose floats are held for one piece at a time; emissions are made twice."""
    here, edges = slice(group.first, group.stop), Edges(problem, group)
    buffer = no_emissions(max(piece.nodes for piece in pieces), problem)
    for piece in pieces:
        out = emissions(problem, group, piece, tile, buffer)
        edges.forward(problem, piece, out.entries)
    losses[here] = edges.loss
    active = None
    if gradients is not None:
        rows, active = gradients.open(problem, group), 0
        share = problem.share(tolerance, group, losses[here])
        for piece in reversed(pieces):
            if piece is not pieces[-1]:
                out = emissions(problem, group, piece, tile, buffer)
            weight = gradients.in_lattice(weights[group.first])
            edges.backward(problem, piece, out.entries, losses[group.first], weight, out.entries)
            problem.lattice.weigh(out.entries)
            chosen = select(problem, out.entries, piece.table, losses[here], share)
            active += chosen.numel()
            for some in chosen.split(tile.rows):
                occupancy = Occupancy(*out.at(some))
                gradient_pass(problem, group, some + piece.first, tile, occupancy, gradients, packed=True, rows=rows)
        gradients.close(problem, group)
    report_group("tiled", group.first, group.stop, group.nodes, active=active)


def emissions(problem: Problem, group: Group, piece: Piece, tile: Tile, buffer: Emissions) -> Emissions:
    """Those of a piece, in the buffer."""
    out = buffer.head(piece.nodes)
    emission_pass(problem, group, range(piece.first, piece.stop), tile, out, packed=True)
    return out
