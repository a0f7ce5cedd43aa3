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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from samplewise.kernels.backend import has_intervals
from samplewise.kernels.layout import FRAMES, START, STRIDE
from samplewise.kernels.protocol import WithIntervals
from samplewise.observation import report_group
from samplewise.ops import buffers, tiled
from samplewise.ops.bounds import Slack, Whole
from samplewise.ops.corridor import Corridor, find, is_worth_it
from samplewise.ops.entry_bounds import Vocabulary, bound_entries
from samplewise.ops.lattices import Emissions, Occupancy
from samplewise.ops.pieces import Edges, Piece, pieces_of
from samplewise.ops.problem import Gradients, Group, Problem
from samplewise.ops.tiles import Kept, Tile, emission_pass, forward_tile, gradient_pass, no_emissions, select
from samplewise.planning.planner import CERTAIN_WORK, LATTICE_WORK, NODE_WORK, SMALL_WORK, WIDE, Schedule

OUTSIDE = 1 / 4  # of the tolerance: what the paths that leave the exact nodes may have
LEFT_OUT = 1 / 2  # of the tolerance: what the gradients leave out
SAMPLE = 128  # nodes
LIKELY = 0.4  # the mean over them of the likeliest class, below which bounds are in vain; measured
SURE = 0.8  # the same, for small layers
MOST_ROUNDS = 6  # then every node is made exact
MARGIN = 1 / 8  # of what may be outside: what a selection leaves out where emissions are bounds


@dataclass
class Exact:
    """Nodes of a piece whose emissions are exact, and their occupancies under the last lattice (E, K)."""

    places: Tensor  # ascending, in the piece
    emissions: Emissions
    gammas: Tensor | None = None


@dataclass
class Band:
    """A group's emissions, exact at some nodes and bounds elsewhere, and the occupancies under them, of one piece at a time."""

    problem: Problem
    vocabulary: Vocabulary
    group: Group
    whole: Whole
    slack: Slack
    tile: Tile
    kept: Kept | None
    pieces: Sequence[Piece | Corridor]
    buffers: Tensor  # (2 E, nodes of the largest piece)
    classes: list[Tensor | None]  # of each piece's stretches, once they are chosen
    exact: list[list[Exact]]  # of each piece
    filled: int | None = None  # the piece whose emissions lie in the buffers

    @classmethod
    def of(
        cls, problem: Problem, vocabulary: Vocabulary, group: Group, whole: Whole, most: int, tile: Tile, kept: Kept | None
    ) -> Band:  # fmt: skip
        pieces = pieces_of(group, most)
        size = max(piece.nodes for piece in pieces)
        floats = buffers.empty((2 * problem.lattice.entries, size), problem.real, problem.device)
        slack = Slack.of(vocabulary.problem, group, whole)
        return cls(
            problem, vocabulary, group, whole, slack, tile, kept, pieces, floats, [None] * len(pieces), [[] for _ in pieces]
        )

    def narrow(self, limit: float, most: int) -> None:
        """Leave out what is known to have no more than a part of the limit, if that is most of the nodes."""
        known = has_intervals(self.problem.kernels)
        if not known or not self.problem.is_plain or not is_worth_it(self.group, self.buffers.shape[1]):
            return
        classes, exact, corridor = find(
            self.problem, self.group, self.whole, self.slack, self.tile, self.kept, self.buffers, limit, most
        )
        if corridor is not None:
            self.pieces, self.exact, self.filled = [corridor], [[]], 0
        elif len(self.pieces) == 1:
            self.classes = [classes]
        if exact is None:
            return
        nodes, emissions = exact
        for piece, parts in zip(self.pieces, self.exact, strict=True):
            places = piece.places_of(nodes)
            here = places >= 0
            parts.append(Exact(places[here], emissions.at(here)))
        if corridor is not None:
            self.put(self.fill(0)[0], self.exact[0][0])

    def fill(self, i: int) -> tuple[Tensor, Tensor]:
        """The emissions of piece i, and room for its occupancies, each (E, N)."""
        piece = self.pieces[i]
        if isinstance(piece, Corridor):
            both = self.buffers[:, : piece.nodes]
        else:
            both = self.buffers.view(-1)[: len(self.buffers) * piece.nodes].view(len(self.buffers), -1)
        entries, gammas = both.chunk(2)
        if self.filled != i and isinstance(piece, Piece):
            table = self.group.table
            if len(self.pieces) > 1:
                table = table.clone()
                table[0, START] -= piece.first
            self.classes[i] = bound_entries(
                self.vocabulary, self.problem, self.group, self.whole, self.slack, self.tile, piece.first, piece.frames, table,
                self.classes[i], entries,
            )  # fmt: skip
            for part in self.exact[i]:
                self.put(entries, part)
            self.filled = i
        return entries, gammas

    def put(self, entries: Tensor, part: Exact) -> None:
        entries[:, part.places] = part.emissions.entries

    def make_exact(self, i: int, places: Tensor) -> None:
        """Exact emissions for places of piece i, which is filled."""
        if places.numel():
            found = no_emissions(places.numel(), self.problem)
            nodes = self.pieces[i].nodes_of(places)
            emission_pass(self.problem, self.group, nodes, self.tile, found, self.kept, packed=True)
            self.exact[i].append(Exact(places, found))
            self.put(self.fill(i)[0], self.exact[i][-1])

    @property
    def visited_nodes(self) -> int:
        only = self.pieces[0]
        return only.visited if isinstance(only, Corridor) else self.group.nodes

    @property
    def exact_nodes(self) -> int:
        return sum(part.places.numel() for parts in self.exact for part in parts)

    def lattices(self, losses: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Each piece's number and occupancies (E, N) under the emissions as they are now; the losses (G,) are known before
        the first of them. A piece may be made more exact while it is one's own turn: that shows in the next lattices."""
        ones, only = torch.ones_like(losses), self.pieces[0]
        if len(self.pieces) == 1:
            entries, gammas = self.fill(0)
            if isinstance(only, Corridor):
                kernels = cast(WithIntervals, self.problem.kernels)
                kernels.interval_lattice(entries[0], entries[1], self.group.table, only.rows, losses, *gammas)
            else:
                self.problem.lattice.run(entries, self.group.table, ones, losses, gammas)
            yield 0, gammas
            return
        edges, pieces = Edges(self.problem, self.group), [piece for piece in self.pieces if isinstance(piece, Piece)]
        for i, piece in enumerate(pieces):
            edges.forward(self.problem, piece, self.fill(i)[0])
        losses.copy_(edges.loss)
        for i in range(len(pieces) - 1, -1, -1):
            entries, gammas = self.fill(i)
            edges.backward(self.problem, pieces[i], entries, losses[0], ones[0], gammas)
            yield i, gammas

    def outside(self, i: int, gammas: Tensor, losses: Tensor) -> Tensor:
        """(G,) the occupancy outside the exact nodes of piece i, summed, and what the paths have that leave it, if it is a
        corridor: paths that are not within the exact nodes have no larger a share."""
        piece, occupancy = self.pieces[i], torch.add(*self.problem.lattice.occupancies(gammas))
        for part in self.exact[i]:
            occupancy.index_fill_(0, part.places, 0.0)
        if isinstance(piece, Corridor):
            sums = [occupancy[first:stop].sum(dtype=torch.float64) for first, stop in piece.places.tolist()]
            return torch.stack(sums) + piece.left * losses.exp()
        sizes = piece.table[:, FRAMES] * piece.table[:, STRIDE]
        return torch.segment_reduce(occupancy, "sum", lengths=sizes, unsafe=True)

    def missing(self, i: int, gammas: Tensor, losses: Tensor, share: float) -> Tensor:
        """Places of piece i that are not exact and are among the fewest that leave such a share of the occupancy outside."""
        piece = self.pieces[i]
        found = select(self.problem, gammas, piece.table, losses, share)
        if self.exact[i]:
            lacks = torch.ones(piece.nodes, dtype=torch.bool, device=found.device)
            for part in self.exact[i]:
                lacks[part.places] = False
            found = found[lacks[found]]
        return found

    def note(self, i: int, gammas: Tensor) -> None:
        """Keep the occupancies of the exact nodes of piece i."""
        for part in self.exact[i]:
            part.gammas = gammas[:, part.places]


def run(problem: Problem, weights: Tensor, gradients: Gradients | None, schedule: Schedule, tolerance: float) -> Tensor:
    """Losses (B,) float64; the gradients of sum_b weights[b] loss[b] are added to `gradients`."""
    if lattice_work(problem) >= WIDE * work_of(problem):
        return tiled.run(problem, weights, gradients, schedule, tolerance * LEFT_OUT)
    losses = weights.new_empty(len(problem.lengths.frames))
    tile = Tile.of(problem, schedule.tile_rows, gradients is not None and gradients.wants_encodings)
    kept = Kept(problem, schedule.kept_rows) if gradients is not None else None
    vocabulary = Vocabulary.of(problem)
    whole = Whole.of(vocabulary.problem)
    for (first, stop), exponentials in zip(schedule.groups, schedule.exponentials, strict=True):
        group = problem.group(first, stop, exponentials)
        if knows_nothing(vocabulary.problem, group, vocabulary.tile(tile)) or not run_group(
            problem, vocabulary, group, whole, weights, losses, gradients, schedule, tolerance, tile, kept
        ):
            tiled.run_group(problem, group, weights, losses, gradients, schedule, tolerance * LEFT_OUT, tile, kept)
    return losses


def run_group(
    problem: Problem, vocabulary: Vocabulary, group: Group, whole: Whole, weights: Tensor, losses: Tensor,
    gradients: Gradients | None, schedule: Schedule, tolerance: float, tile: Tile, kept: Kept | None,
) -> bool:  # fmt: skip
    """One group from the bounds to the gradient; False where it is better, or necessary, to make every node exact."""
    here = slice(group.first, group.stop)
    if kept is not None:
        kept.clear()
    band = Band.of(problem, vocabulary, group, whole, schedule.whole, tile, kept)
    limit = tolerance * OUTSIDE / problem.lattice.label_factor
    band.narrow(limit * MARGIN, schedule.exact_nodes)
    settled = settle(band, losses[here], limit, schedule.exact_nodes)
    if settled is None:
        return False
    active = None
    if gradients is not None:
        active = gradient(band, weights[here], losses[here], gradients, tolerance * LEFT_OUT)
    report_group(
        "guided", group.first, group.stop, group.nodes, exact=band.exact_nodes, active=active, rounds=settled[0],
        bound=settled[1], visited=band.visited_nodes,
    )  # fmt: skip
    return True


def knows_nothing(problem: Problem, group: Group, tile: Tile) -> bool:
    """Whether bounds would be a part of the work, and in vain, since no class is sure of itself: so in the first steps."""
    if problem.device.type != "cpu" or problem.weight.numel() >= CERTAIN_WORK or group.nodes <= SAMPLE:
        return False
    node = torch.arange(SAMPLE, device=problem.device) * group.nodes // SAMPLE
    found = []
    for some in node.split(tile.rows):
        here = tile.head(some.numel())
        forward_tile(problem, group, some, here)
        found.append((here.h.to(problem.real) + problem.bias).softmax(1).amax(1))
    return float(torch.cat(found).mean()) < (SURE if problem.weight.numel() < SMALL_WORK else LIKELY)


def work_of(problem: Problem) -> int:
    """Multiply-adds that take as long as a node's exact emissions."""
    return problem.weight.numel() + NODE_WORK


def lattice_work(problem: Problem) -> int:
    """Multiply-adds that take as long as a node in a lattice."""
    return LATTICE_WORK * problem.lattice.work


def settle(band: Band, losses: Tensor, limit: float, most: int) -> tuple[int, float] | None:
    """Grow the exact nodes until the occupancy outside them, summed, is within the limit. Returns rounds and that sum, or None
    where every node should be exact: there is room for no more than `most`, or to go on is more work than that."""
    everything, work, again = band.group.nodes, work_of(band.problem), lattice_work(band.problem)
    frames, labels = (size[band.group.first : band.group.stop] for size in band.problem.lengths)
    share = limit * MARGIN / max(t + u for t, u in zip(frames, labels, strict=True))  # an utterance's occupancies sum to T + U
    for rounds in range(MOST_ROUNDS + 1):
        outside = torch.zeros_like(losses)
        for i, gammas in band.lattices(losses):
            if rounds:
                outside += band.outside(i, gammas, losses)
                band.note(i, gammas)
            last = i == 0  # of the pieces on the way back, and the only one where all utterances are whole
            if last and rounds and (largest := float(outside.max())) <= limit:
                return rounds, largest
            missing = band.missing(i, gammas, losses, share)  # none of an utterance whose loss is not finite
            exact = band.exact_nodes + missing.numel()
            if exact > most or exact * work + rounds * everything * again > WIDE * everything * work:
                return None
            band.make_exact(i, missing)
        if rounds == 0 and not bool(torch.isfinite(losses).all()):
            return None  # what is wrong with an utterance is said by its exact emissions
    return None


def gradient(band: Band, weights: Tensor, losses: Tensor, gradients: Gradients, tolerance: float) -> int:
    """Gradients from the exact nodes that carry all but the tolerance of the occupancy; returns how many they are."""
    problem, group = band.problem, band.group
    pairs = zip(band.pieces, band.exact, strict=True)
    parts = [
        (piece.nodes_of(part.places), part.emissions.denominators, part.gammas)
        for piece, parts in pairs for part in parts if part.gammas is not None
    ]  # fmt: skip
    nodes, order = torch.cat([nodes for nodes, _, _ in parts]).sort()
    denominators, gammas = (torch.cat([part[k] for part in parts], 1)[:, order] for k in (1, 2))
    starts = torch.cat((group.table[:, START], group.table.new_full((1,), group.nodes)))
    place = torch.searchsorted(nodes, starts)  # where each utterance's nodes begin
    table = torch.zeros_like(group.table)
    table[:, START], table[:, FRAMES], table[:, STRIDE] = place[:-1], place.diff(), 1
    problem.lattice.weigh(gammas)
    chosen = select(problem, gammas, table, losses, problem.share(tolerance, group, losses))
    nodes = nodes[chosen]
    weight = gradients.in_lattice(weights)[torch.searchsorted(starts, nodes, right=True) - 1].to(problem.real)
    occupancy = Occupancy(denominators[:, chosen], gammas[:, chosen] * weight)
    gradient_pass(problem, group, nodes, band.tile, occupancy, gradients, band.kept, packed=True)
    return nodes.numel()
