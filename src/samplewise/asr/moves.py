"""How symbols move a search through the lattice of a topology: what `samplewise.topology` says of arcs, for decoding."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from samplewise.topology import Arc, Topology


class Move(NamedTuple):
    """An arc: the frames it goes on, and the number of the duration whose probability it has beside the symbol's, if any."""

    frames: int
    duration: int | None


class Moves(NamedTuple):
    """The arcs of a topology, by their symbols.

    Attributes:
        blanks: the arcs of each blank, by its class.
        labels: those that every label has.
        durations: frames of each duration, in their order; none where symbols have no duration of their own.
        ahead: a label also pays the blank that would follow it in its frame.
        label_ends: a label may be the last symbol, so its arc may end with the last frame.
    """

    blanks: dict[int, tuple[Move, ...]]
    labels: tuple[Move, ...]
    durations: tuple[int, ...]
    ahead: bool
    label_ends: bool

    def least_frames(self, labels: int) -> int:
        """The fewest frames that so many labels fit into, where a blank of one frame is among the arcs."""
        least = labels * min(move.frames for move in self.labels)
        return max(1, least if self.label_ends else least + 1)

    def frames(self, symbols: Tensor, durations: Tensor | None) -> Tensor:
        """The frames (B,) that the symbols (B,) go on, with the numbers of their durations (B,) if they have such. A blank
        always goes on one frame at least."""
        if durations is not None:
            chosen = torch.tensor(self.durations, device=symbols.device)[durations]
            return torch.where(self.are_blanks(symbols), chosen.clamp(min=1), chosen)
        found = torch.full_like(symbols, self.labels[0].frames)
        for symbol, (move, *_) in self.blanks.items():
            found = found.masked_fill(symbols == symbol, move.frames)
        return found

    def are_blanks(self, symbols: Tensor) -> Tensor:
        """Which symbols (B,) are blanks."""
        return torch.isin(symbols, torch.tensor(list(self.blanks), device=symbols.device))


def moves_of(topology: Topology, blank: int) -> Moves:
    """The moves of a topology whose blank is that class."""
    entries = topology.entries
    own = {e: int(entry.column) for e, entry in enumerate(entries) if entry.head != topology.label_head and entry.head > 0}

    def move(arc: Arc) -> Move:
        return Move(arc.frames, next((own[e] for e in arc.entries if e in own), None))

    blanks: dict[int, tuple[Move, ...]] = {}
    for arc in topology.arcs:
        if not arc.labels:
            symbol = topology.column(entries[next(e for e in arc.entries if e not in own)].column, blank)
            blanks[symbol] = (*blanks.get(symbol, ()), move(arc))
    of_labels = [arc for arc in topology.arcs if arc.labels]
    labels = tuple(move(arc) for arc in of_labels)
    durations = tuple(each.frames for each in sorted(labels, key=lambda each: each.duration or 0)) if own else ()
    return Moves(blanks, labels, durations, any(arc.ahead is not None for arc in of_labels), topology.label_ends)
