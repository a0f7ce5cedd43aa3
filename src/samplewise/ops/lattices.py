"""The passes' one view of a lattice: emissions of a tile, the lattice itself, whole or in pieces, the gradient of a tile.

`TwoArcs` is the lattice of Graves 2012, which has kernels of its own; `Arcs` is any topology. What both do is the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from samplewise.kernels.protocol import Kernels
from samplewise.topology import Bound, Topology, named


class Emissions(NamedTuple):
    """Of some nodes: the log denominators of the heads (H, N), and the log-probabilities of the topology's entries (E, N)."""

    denominators: Tensor
    entries: Tensor

    def at(self, places: Tensor) -> Emissions:
        return Emissions(*(part[:, places] for part in self))

    def head(self, nodes: int) -> Emissions:
        """The first so many, of buffers for more."""
        return Emissions(*(part.view(-1)[: len(part) * nodes].view(len(part), nodes) for part in self))


class Occupancy(NamedTuple):
    """What the gradient of a node is made of: its log denominators (H, N) and the (scaled) posteriors of its entries (E, N)."""

    denominators: Tensor
    gammas: Tensor


class Lattice(Protocol):
    """What a topology is to the passes."""

    @property
    def label_factor(self) -> float: ...

    @property
    def label_entry(self) -> int: ...

    @property
    def work(self) -> int:
        """What a node takes in the lattice, of what it takes in the regular one."""

    @property
    def heads(self) -> int: ...

    @property
    def entries(self) -> int: ...

    def emission(self, h: Tensor, bias: Tensor, at: Tensor, label: Tensor, out: Emissions) -> None:
        """Emissions of a tile of logits (R, C), whose row r is that of place at[r] of the outputs."""

    def gradient(self, h: Tensor, bias: Tensor, at: Tensor, label: Tensor, occupancy: Occupancy, d_bias: Tensor) -> None:
        """The logits become dL/dh; d_bias adds up its columns."""

    def run(self, entries: Tensor, table: Tensor, weights: Tensor, losses: Tensor, gammas: Tensor | None) -> None:
        """Losses (G,), and the posteriors of the entries; `gammas` may be these, which then are overwritten."""

    def weigh(self, gammas: Tensor) -> None:
        """Posteriors become what the gradients are made of: those of labels times what FastEmit says."""

    def edge(self, width: int, device: torch.device) -> Tensor:
        """Nothing, in the form of what goes from piece to piece."""

    def forward_piece(self, entries: Tensor, table: Tensor, after: int, above: Tensor) -> None: ...

    def backward_piece(
        self, entries: Tensor, table: Tensor, after: int, above: Tensor, below: Tensor, loss: Tensor, weight: Tensor,
        gammas: Tensor,
    ) -> None: ...  # fmt: skip

    def occupancies(self, gammas: Tensor) -> tuple[Tensor, Tensor]:
        """Two numbers a node whose sum bounds each element of its dL/dh."""


@dataclass(frozen=True)
class TwoArcs:
    """The regular lattice, by kernels of its own."""

    kernels: Kernels
    blank: int
    label_factor: float = 1.0  # of the posteriors of label arcs, 1 + lambda of FastEmit
    heads, entries, label_entry, work = 1, 2, 1, 1

    def emission(self, h: Tensor, bias: Tensor, at: Tensor, label: Tensor, out: Emissions) -> None:
        self.kernels.emission(h, bias, at, label, self.blank, out.denominators[0], *out.entries)

    def gradient(self, h: Tensor, bias: Tensor, at: Tensor, label: Tensor, occupancy: Occupancy, d_bias: Tensor) -> None:
        gamma_blank, gamma_label = occupancy.gammas
        self.kernels.emission_gradient(
            h, bias, at, label, self.blank, occupancy.denominators[0], gamma_blank, gamma_label, d_bias
        )

    def run(self, entries: Tensor, table: Tensor, weights: Tensor, losses: Tensor, gammas: Tensor | None) -> None:
        lp_blank, lp_label = entries
        self.kernels.lattice(lp_blank, lp_label, table, weights, losses, *((None, None) if gammas is None else gammas))

    def weigh(self, gammas: Tensor) -> None:
        if self.label_factor != 1.0:
            gammas[1].mul_(self.label_factor)

    def edge(self, width: int, device: torch.device) -> Tensor:
        return torch.full((1, width), -math.inf, dtype=torch.float64, device=device)

    def forward_piece(self, entries: Tensor, table: Tensor, after: int, above: Tensor) -> None:
        self.kernels.forward_piece(entries[0], entries[1], table, above[0])

    def backward_piece(
        self, entries: Tensor, table: Tensor, after: int, above: Tensor, below: Tensor, loss: Tensor, weight: Tensor,
        gammas: Tensor,
    ) -> None:  # fmt: skip
        if after == 0:
            below[0, -1] = 0.0
        self.kernels.backward_piece(entries[0], entries[1], table, above[0], below[0], loss, weight, *gammas)

    def occupancies(self, gammas: Tensor) -> tuple[Tensor, Tensor]:
        return gammas[0], gammas[1]


@dataclass(frozen=True)
class Arcs:
    """Any topology, by the general kernels."""

    kernels: Kernels
    topology: Topology
    form: Bound
    label_factor: float = 1.0

    @property
    def heads(self) -> int:
        return len(self.form.heads)

    @property
    def entries(self) -> int:
        return len(self.form.entries)

    @property
    def label_entry(self) -> int:
        return self.topology.label_entry

    @property
    def work(self) -> int:
        return 2 * len(self.form.arcs)  # measured: scripts/time_of_topologies.py

    def emission(self, h: Tensor, bias: Tensor, at: Tensor, label: Tensor, out: Emissions) -> None:
        self.kernels.entries(h, bias, at, label, self.form, *out)

    def gradient(self, h: Tensor, bias: Tensor, at: Tensor, label: Tensor, occupancy: Occupancy, d_bias: Tensor) -> None:
        self.kernels.entries_gradient(h, bias, at, label, self.form, *occupancy, d_bias)

    def run(self, entries: Tensor, table: Tensor, weights: Tensor, losses: Tensor, gammas: Tensor | None) -> None:
        self.kernels.arcs_lattice(entries, table, self.form, weights, losses, gammas)

    def weigh(self, gammas: Tensor) -> None:
        if self.label_factor != 1.0:
            for e in self.topology.emitting:
                gammas[e].mul_(self.label_factor)

    def edge(self, width: int, device: torch.device) -> Tensor:
        return torch.full((self.form.reach, width), -math.inf, dtype=torch.float64, device=device)

    def forward_piece(self, entries: Tensor, table: Tensor, after: int, above: Tensor) -> None:
        self.kernels.arcs_forward_piece(entries, table, self.form, after, above)

    def backward_piece(
        self, entries: Tensor, table: Tensor, after: int, above: Tensor, below: Tensor, loss: Tensor, weight: Tensor,
        gammas: Tensor,
    ) -> None:  # fmt: skip
        self.kernels.arcs_backward_piece(entries, table, self.form, after, above, below, loss, weight, gammas)

    def occupancies(self, gammas: Tensor) -> tuple[Tensor, Tensor]:
        first = sum(entry[0] == 0 for entry in self.form.entries)
        return gammas[0], gammas[1] if first == 2 else gammas[1:first].sum(0)


def lattice_of(kernels: Kernels, key: str, rows: int, blank: int, label_factor: float = 1.0) -> Lattice:
    """The lattice of a topology's key, over an output layer of so many rows."""
    topology = named(key)
    if topology.name == "regular":
        return TwoArcs(kernels, blank, label_factor)
    return Arcs(kernels, topology, topology.bind(rows, blank), label_factor)
