"""Two of the three passes over nodes: emission and gradient, tile by tile. The third, the lattice, is a kernel alone.

A tile is R rows of the group's node list. Its joint encodings z (R, D), its logits h (R, C) and dz (R, D) live in one workspace
that the next tile overwrites; h becomes dL/dh in place. Matrix products are PyTorch's; everything around them is a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from samplewise.kernels.backend import fused_emission_of
from samplewise.ops import buffers
from samplewise.ops.lattices import Emissions, Occupancy
from samplewise.ops.problem import Gradients, Group, Problem, wide_dtype


def no_emissions(nodes: int, problem: Problem) -> Emissions:
    """Room for those of some nodes."""
    lattice = problem.lattice
    return Emissions(
        buffers.empty((lattice.heads, nodes), wide_dtype(problem.device), problem.device),
        buffers.empty((lattice.entries, nodes), problem.real, problem.device),
    )


@dataclass(frozen=True)
class Tile:
    """The buffers of one tile of at most R rows."""

    z: Tensor  # (R, D)
    h: Tensor  # (R, C)
    dz: Tensor  # (R, D), or (0, D) where no gradient of the encodings is wanted
    frame: Tensor  # (R,)
    token: Tensor  # (R,)
    label: Tensor  # (R,)

    @classmethod
    def of(cls, problem: Problem, rows: int, gradient: bool, classes: int | None = None) -> Tile:
        dim = problem.weight.shape[1]
        classes = problem.weight.shape[0] if classes is None else classes
        index = torch.empty(3, rows, dtype=torch.int64, device=problem.device)
        return cls(
            floats(problem, rows, dim), floats(problem, rows, classes), floats(problem, rows if gradient else 0, dim), *index
        )  # fmt: skip

    @property
    def rows(self) -> int:
        return self.frame.shape[0]

    def of_classes(self, classes: int) -> Tile:
        """The same buffers with logits of fewer classes."""
        if classes == self.h.shape[1]:
            return self
        return replace(self, h=self.h.view(-1)[: self.rows * classes].view(self.rows, classes))

    def head(self, rows: int) -> Tile:
        """The same buffers for a last tile of fewer rows."""
        if rows == self.rows:
            return self
        buffers = (self.z, self.h, self.dz, self.frame, self.token, self.label)
        return Tile(*(buffer[:rows] for buffer in buffers))


class Kept:
    """z and h of nodes that the gradient pass will want again, as far as they fit; of the others they are computed again."""

    def __init__(self, problem: Problem, capacity: int) -> None:
        classes, dim = problem.weight.shape
        self.z, self.h = floats(problem, capacity, dim), floats(problem, capacity, classes)  # (K, D), (K, C)
        self.nodes: list[Tensor] = []
        self.held = 0
        self.whole = False  # every node of a group is here, in order

    def clear(self) -> None:
        self.nodes, self.held, self.whole = [], 0, False

    @property
    def room(self) -> int:
        """Nodes that still fit."""
        return self.z.shape[0] - self.held

    def place(self, node: Tensor, tile: Tile) -> Tile:
        """The tile with its z and h in the store, for nodes that fit."""
        here = slice(self.held, self.held + node.numel())
        self.nodes.append(node)
        self.held += node.numel()
        return replace(tile, z=self.z[here], h=self.h[here])

    def find(self, node: Tensor) -> tuple[Tensor | None, Tensor]:
        """Which of some nodes are here (None: all, and nothing has to be waited for), and the rows of those that are."""
        if self.whole:
            return None, node
        stored, order = torch.cat(self.nodes).sort()
        at = torch.searchsorted(stored, node).clamp_(max=self.held - 1)
        held = stored[at] == node
        return held, order[at[held]]


def floats(problem: Problem, height: int, width: int) -> Tensor:
    return buffers.empty((height, width), problem.compute, problem.device)


def joint_tile(problem: Problem, group: Group, node: Tensor, tile: Tile) -> None:
    """z of the tile's nodes, and their rows and labels."""
    kernels = problem.kernels
    kernels.locate(node, group.table, group.targets, tile.frame, tile.token, tile.label)
    encoder_rows, predictor_rows, activation = group.joint_rows(problem.activation)
    kernels.joint(encoder_rows, predictor_rows, tile.frame, tile.token, activation, tile.z)
    problem.drop(group, tile.z, tile.frame, tile.token)


def forward_tile(problem: Problem, group: Group, node: Tensor, tile: Tile) -> None:
    """z and h of the tile's nodes; h is without its bias, which the kernels add where they read it."""
    joint_tile(problem, group, node, tile)
    torch.mm(tile.z, problem.weight.t(), out=tile.h)  # (R, D) (D, V)


def add_product(total: Tensor, h: Tensor, z: Tensor) -> None:
    """total (V, D) += h^T z. In half precision a tile's product is rounded once, and the tiles add up in float32."""
    if h.dtype == total.dtype:
        total.addmm_(h.t(), z)  # (V, R) (R, D)
    elif h.dtype == torch.float16:  # whose range is too small for a sum over nodes
        total.addmm_(h.t().to(total.dtype), z.to(total.dtype))
    else:
        total += torch.mm(h.t(), z)


def gradient_tile(
    problem: Problem, group: Group, at: Tensor, tile: Tile, occupancy: Occupancy, gradients: Gradients,
    rows: tuple[Tensor, Tensor],
) -> None:  # fmt: skip
    """h becomes dh; then dW += dh^T z, db += sum dh, dz = dh W, and dz goes on to the rows of the encodings. `at` (R,) says
    where the occupancies of the tile's nodes are."""
    logits_gradient(problem, group, tile.h, at, tile.label, tile.frame, occupancy, gradients)
    if gradients.weight is not None:
        add_product(gradients.weight, tile.h, tile.z)
    if gradients.wants_encodings:
        torch.mm(tile.h, problem.weight, out=tile.dz)  # (R, V) (V, D)
        if problem.dropout is not None:
            problem.drop(group, tile.dz, tile.frame, tile.token)
            tile.z.mul_(1.0 / problem.dropout.scale)  # as the activation left it, where the gradient is not dropped
        problem.kernels.joint_gradient(
            tile.dz, tile.z, group.encoder_rows, group.predictor_rows, tile.frame, tile.token, problem.activation, *rows
        )


def logits_gradient(
    problem: Problem, group: Group, h: Tensor, at: Tensor, label: Tensor, frame: Tensor, occupancy: Occupancy,
    gradients: Gradients,
) -> None:  # fmt: skip
    """h (R, V) becomes dh, clamped where that is wanted and multiplied by the utterance's weight after; db += sum dh."""
    if gradients.clamp is None:
        problem.lattice.gradient(h, problem.bias, at, label, occupancy, gradients.bias)
        return
    problem.lattice.gradient(h, problem.bias, at, label, occupancy, torch.zeros_like(gradients.bias))
    limit, weights, unit = gradients.clamp
    limit = min(limit * unit, torch.finfo(h.dtype).max)
    utterance = group.first + frame // problem.encoder_out.shape[1]
    h.clamp_(-limit, limit).mul_((weights[utterance] / unit).to(h.dtype)[:, None])
    gradients.bias += h.sum(0, dtype=gradients.bias.dtype)


def emission_pass(
    problem: Problem, group: Group, nodes: Tensor | range | None, tile: Tile, out: Emissions, kept: Kept | None = None, *,
    fuse: bool = True, packed: bool = False,
) -> None:  # fmt: skip
    """Emissions of the given nodes, or of every node of the group; z and h stay in `kept` if they fit beside what is there.

    `out` has a place for every node of the group, or, `packed`, one for each of the given nodes in their order. `fuse` allows a
    kernel that leaves z and h of the others out of the tile, if one is asked for.
    """
    every = nodes if nodes is not None else range(group.nodes)
    count = len(every)
    fused = fused_emission_of(problem.kernels, problem.compute) if fuse and problem.is_plain else None
    for start in range(0, count, tile.rows):
        stop = min(start + tile.rows, count)
        some = every[start:stop]
        node = torch.arange(some.start, some.stop, device=problem.device) if isinstance(some, range) else some
        at = torch.arange(start, stop, device=problem.device) if packed else node
        here, stays = tile.head(stop - start), kept is not None and kept.room >= stop - start
        if kept is not None and stays:
            here = kept.place(node, here)
        if fused is not None and not stays:
            problem.kernels.locate(node, group.table, group.targets, here.frame, here.token, here.label)
            fused(
                group.encoder_rows, group.predictor_rows, here.frame, here.token, problem.activation, problem.weight,
                problem.bias, at, here.label, problem.blank, out.denominators[0], *out.entries,
            )  # fmt: skip
        else:
            forward_tile(problem, group, node, here)
            problem.lattice.emission(here.h, problem.bias, at, here.label, out)
        problem.adjust(group, out.entries, at, here.frame, here.token)
    if kept is not None:
        kept.whole = nodes is None and kept.held == count


def gradient_pass(
    problem: Problem, group: Group, active: Tensor, tile: Tile, occupancy: Occupancy, gradients: Gradients,
    kept: Kept | None = None, *, packed: bool = False, rows: tuple[Tensor, Tensor] | None = None,
) -> None:  # fmt: skip
    """Gradients from the active nodes (A,), packed into full tiles across utterances; z and h from `kept` where they are.

    `occupancy` is that of every node of the group, or, `packed`, of the active ones in their order. `rows` are
    the group's, if more than one pass adds to them.
    """
    opened, rows = rows is None, rows or gradients.open(problem, group)
    at = torch.arange(active.numel(), device=problem.device) if packed else active
    stored = place = active[:0]
    if kept is not None and kept.held:
        held, place = kept.find(active)
        if held is None:
            stored, active, at, stored_at = active, active[:0], at[:0], at
        else:
            stored, active, stored_at, at = active[held], active[~held], at[held], at[~held]
    for start in range(0, stored.numel(), tile.rows):
        node = stored[start : start + tile.rows]
        here = tile.head(node.numel())
        problem.kernels.locate(node, group.table, group.targets, here.frame, here.token, here.label)
        for store, buffer in ((kept.z, here.z), (kept.h, here.h)) if kept is not None else ():
            torch.index_select(store, 0, place[start : start + tile.rows], out=buffer)
        gradient_tile(problem, group, stored_at[start : start + tile.rows], here, occupancy, gradients, rows)
    for start in range(0, active.numel(), tile.rows):
        node = active[start : start + tile.rows]
        here = tile.head(node.numel())
        forward_tile(problem, group, node, here)
        gradient_tile(problem, group, at[start : start + tile.rows], here, occupancy, gradients, rows)
    if opened:
        gradients.close(problem, group)


def run_lattice(
    problem: Problem, group: Group, out: Emissions, weights: Tensor, losses: Tensor, gradients: Gradients | None
) -> Occupancy:
    """The group's part of losses (B,), and the emissions turned into occupancies in place where gradients are wanted."""
    here = slice(group.first, group.stop)
    if gradients is None:
        problem.lattice.run(out.entries, group.table, weights[here], losses[here], None)
    else:
        problem.lattice.run(out.entries, group.table, gradients.in_lattice(weights[here]), losses[here], out.entries)
        problem.lattice.weigh(out.entries)
    return Occupancy(*out)


def select(problem: Problem, gammas: Tensor, table: Tensor, losses: Tensor, share: float) -> Tensor:
    """The nodes that carry all but a share of the occupancy."""
    return problem.kernels.select(*problem.lattice.occupancies(gammas), table, losses, share)
