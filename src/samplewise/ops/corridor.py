"""The nodes that can matter where the loss is small, found without bounds of all others.

1. A narrow sweep: forward through bounds, frame by frame, without what is far below the best of its frame.
2. Exact emissions on the nodes that carry most of its occupancy; the paths inside these alone give an upper bound of the loss.
3. A sweep without what has less than a small part of the likelihood that this stands for. All paths that leave this corridor
   have no more, together, than what went over its edges, which is summed.

So the corridor is a lattice of its own, and what is outside of it is known to be little, with no look at it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from samplewise.kernels.layout import FRAMES, LABELS, START, STRIDE, on_device
from samplewise.kernels.protocol import WithIntervals
from samplewise.ops.bounds import Slack, Whole, choose, cut, gather, how_many
from samplewise.ops.lattices import Emissions
from samplewise.ops.problem import Group, Problem
from samplewise.ops.tiles import Kept, Tile, emission_pass, no_emissions
from samplewise.planning.planner import CORRIDOR, stretches_at_once

NARROW = math.exp(-8)  # of what comes down to a frame: what is looked at first
FIRST = 1 / 4  # of the probability: what the paths that leave the first exact nodes have, under bounds
LEAST = 60  # labels of a frame: about so many are looked at by both sweeps where there is hardly a loss; measured
A_LABEL = 0.25  # nats: of so much loss, and more, the corridor is too large a part of the lattice; measured
SMALL, LARGE = 30.0, 500.0  # nats: a loss that is always tried, and what plain float64 can do
MOST_UTTERANCES = 64  # of a group, so that a part of their stretches has several of each
KEPT_PARTS = 3  # of the stretches, whose weights stay from one sweep to the next


@dataclass(frozen=True)
class Corridor:
    """An interval of nodes of each frame: rows (R, 3) as for the kernel `interval_lattice`, by place in the emissions."""

    group: Group
    rows: Tensor
    start: Tensor  # (R,) the node of the group at the first place of each row
    places: Tensor  # (G, 2) those of an utterance, and the one after them
    left: Tensor  # (G,) what the paths that leave it have at most

    @property
    def nodes(self) -> int:
        """Places, those between utterances, too."""
        return int(self.places[:, 1].amax())

    @property
    def visited(self) -> int:
        """Nodes that are in it."""
        return int(self.places.diff().sum())

    @property
    def table(self) -> Tensor:
        """(G, 7) of places, as one frame each."""
        table = self.group.table.clone()
        table[:, START], table[:, FRAMES], table[:, STRIDE] = self.places[:, 0], self.places.diff()[:, 0], 1
        return table

    def nodes_of(self, places: Tensor) -> Tensor:
        row = torch.searchsorted(self.rows[:, 0].contiguous(), places, right=True) - 1
        return self.start[row] + places - self.rows[row, 0]

    def places_of(self, nodes: Tensor) -> Tensor:
        """Those of ascending nodes, -1 for one that is not in the corridor."""
        row = torch.searchsorted(self.start, nodes, right=True) - 1
        at = nodes - self.start[row]
        return torch.where((row >= 0) & (at < self.rows[row, 2] - self.rows[row, 1]), self.rows[row, 0] + at, -1)

    def write(self, out: Tensor, otherwise: float, places: Tensor, emissions: Emissions) -> None:
        """Both emissions of some places into `out` (2, N), and another number into all others."""
        for first, stop in self.places.tolist():
            out[:, first:stop] = otherwise
        out[:, places] = emissions.entries


class Sweeps:
    """Sweeps over a group with the same classes."""

    def __init__(self, problem: Problem, group: Group, whole: Whole, slack: Slack, tile: Tile) -> None:
        self.problem, self.group, self.whole, self.slack = problem, group, whole, slack
        here = slice(group.first, group.stop)
        self.frames, labels = problem.lengths.frames[here], problem.lengths.labels[here]
        self.width = max(labels) + 1
        stretches = cut(self.frames, labels, (0, 1 << 62))
        self.stretches = on_device(problem.device, stretches)
        few = how_many(problem, group, whole, self.stretches, tile)
        self.parts = in_turns(stretches, len(labels), stretches_at_once(problem.weight.shape[1], few))
        self.classes = self.stretches.new_empty(len(stretches), few + 1)
        self.gathered: dict[int, tuple[Tensor, Tensor, Tensor, Tensor]] = {}
        for part in self.parts:
            self.classes[part] = torch.cat([found for _, found, _ in choose(problem, group, self.stretches[part], tile, few)])

    def run(
        self, level: Tensor, floor: Tensor | None, room: Tensor, known: tuple[Tensor, ...], out: list[Tensor]
    ) -> Corridor | None:
        """The corridor, None where there is no room for it; bounds of its nodes in `out`."""
        problem, group = self.problem, self.group
        utterances = len(self.frames)
        down = torch.zeros(utterances, self.width, dtype=torch.float64)
        down[:, 0] = 1.0
        edges = torch.zeros(utterances, 3, dtype=torch.int64)
        edges[:, 1], edges[:, 2] = 1, room[:, 0]
        left, rows = torch.zeros(utterances, dtype=torch.float64), torch.zeros(sum(self.frames), 3, dtype=torch.int64)
        for number, part in enumerate(self.parts):
            cast(WithIntervals, problem.kernels).sweep(
                *group.joint_rows(problem.activation), group.table, group.targets, problem.weight, problem.bias,
                self.stretches[part], self.classes[part], *self.weights(number), level, floor, known, room, (down, edges, left),
                rows, *out[:2],
            )  # fmt: skip
            if bool((edges[:, 2] < 0).any()) or int((edges[:, 2] - room[:, 0]).sum()) > CORRIDOR * group.nodes:
                return None
        table = group.table
        first = torch.repeat_interleave(table[:, START] - table[:, STRIDE] * frames_before(table), table[:, FRAMES])
        stride = torch.repeat_interleave(table[:, STRIDE], table[:, FRAMES])
        start = first + stride * torch.arange(len(rows)) + rows[:, 1]
        return Corridor(group, rows, start, torch.stack((room[:, 0], edges[:, 2]), 1), left)

    def weights(self, part: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What `gather` makes for a part; of few parts it is kept."""
        found = self.gathered.get(part)
        if found is None:
            some = self.parts[part]
            found = gather(self.problem, self.whole, self.stretches[some], self.classes[some], self.slack)
            if len(self.parts) <= KEPT_PARTS:
                self.gathered[part] = found
        return found


def frames_before(table: Tensor) -> Tensor:
    """(G,) the frames of all utterances before each."""
    return table[:, FRAMES].cumsum(0) - table[:, FRAMES]


def in_turns(stretches: list[tuple[int, int, int]], utterances: int, some: int) -> list[Tensor]:
    """Places of stretches that a sweep takes together, about so many: the next ones of every utterance that has any left."""
    own: list[list[int]] = [[] for _ in range(utterances)]
    for place, (g, _, _) in enumerate(stretches):
        own[g].append(place)
    parts, at = [], 0
    while own:
        each = max(1, some // len(own))
        parts.append(torch.tensor([place for places in own for place in places[at : at + each]]))
        at += each
        own = [places for places in own if len(places) > at]
    return parts


def is_worth_it(group: Group, size: int) -> bool:
    """Whether the corridor would be a small part of the group's nodes, and of `size` places, if there were no loss at all; and
    whether all joint encodings are numbers, for what it does not look at must not be any that makes a loss NaN."""
    labels, frames = group.table[:, LABELS], group.table[:, FRAMES]
    expected = int((frames * (labels + 1).clamp(max=LEAST)).sum())
    small = expected < min(CORRIDOR * group.nodes, size) and len(group.table) <= MOST_UTTERANCES
    return small and all(bool(rows.isfinite().all()) for rows in (group.encoder_rows, group.predictor_rows))


def find(
    problem: Problem, group: Group, whole: Whole, slack: Slack, tile: Tile, kept: Kept | None, buffers: Tensor, limit: float,
    most: int,
) -> tuple[Tensor, tuple[Tensor, Emissions] | None, Corridor | None]:  # fmt: skip
    """The classes of the group's stretches; nodes that are exact now, no more than `most`, and their emissions; and a corridor
    that all but `limit` of the probability of the paths stays in, if there is one that is worth it: its bounds are in the first
    two of the buffers (4, N) then."""
    sweeps = Sweeps(problem, group, whole, slack, tile)
    nodes, labels = group.table[:, FRAMES] * group.table[:, STRIDE], group.table[:, LABELS]
    size = buffers.shape[1]
    first = (nodes.cumsum(0) - nodes) * size // group.nodes
    room = torch.stack((first, first + nodes.clamp(max=size)), 1)
    nothing = torch.zeros(sum(sweeps.frames), 3, dtype=torch.int64), buffers.new_empty(0), buffers.new_empty(0)
    floor = torch.exp(-(labels * A_LABEL).double().clamp(SMALL, LARGE))
    narrow = sweeps.run(torch.full_like(floor, NARROW), floor, room, nothing, list(buffers))
    if narrow is None:
        return sweeps.classes, None, None
    losses = torch.empty(len(nodes), dtype=torch.float64)
    lattice = cast(WithIntervals, problem.kernels).interval_lattice
    lattice(buffers[0], buffers[1], group.table, narrow.rows, losses, *buffers[2:])
    if not bool((losses <= LARGE).all()):
        return sweeps.classes, None, None
    arcs = group.table[:, FRAMES] + labels
    places = problem.kernels.select(buffers[2], buffers[3], narrow.table, losses, FIRST / int(arcs.amax()))
    if places.numel() > most:
        return sweeps.classes, None, None
    exact = chosen, emissions = narrow.nodes_of(places), no_emissions(places.numel(), problem)
    emission_pass(problem, group, chosen, tile, emissions, kept, packed=True)
    narrow.write(buffers[2:], -torch.inf, places, emissions)
    lattice(buffers[2], buffers[3], group.table, narrow.rows, losses, None, None)
    if not bool((losses <= LARGE).all()):
        return sweeps.classes, exact, None
    narrow.write(buffers[2:], torch.nan, places, emissions)
    level = level_of(losses, limit, arcs)
    return sweeps.classes, exact, sweeps.run(level, None, room, (narrow.rows, *buffers[2:]), list(buffers))


def level_of(losses: Tensor, limit: float, arcs: Tensor) -> Tensor:
    """(G,) what a node must have to stay, so that all that are left out have about so much of the likelihood together."""
    return torch.exp(-losses) * limit / (4 * arcs)
