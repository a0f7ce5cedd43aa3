"""A group as pieces: whole, or, if it is one utterance too long to hold floats for all of its nodes, some frames at a time.

Forward through the pieces goes alpha, backward comes beta; between pieces one row of alpha is kept. Emissions or bounds of a
piece are made when it is its turn, so those of every piece but the last are made twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from samplewise.kernels.layout import FRAME_BASE, FRAMES, LABELS, START, STRIDE
from samplewise.ops.problem import Group, Problem
from samplewise.planning.planner import piece_frames


@dataclass(frozen=True)
class Piece:
    """Nodes first..stop-1 of a group: frames of its one utterance, or all of all utterances."""

    first: int
    stop: int
    frames: tuple[int, int]  # those of an utterance in pieces
    after: int  # frames of the utterance behind them
    table: Tensor  # (G, 7) of the piece as if it were all that there is, nodes from 0 on

    @property
    def nodes(self) -> int:
        return self.stop - self.first

    def nodes_of(self, places: Tensor) -> Tensor:
        return places + self.first

    def places_of(self, nodes: Tensor) -> Tensor:
        """-1 for nodes that are not here."""
        return torch.where((nodes >= self.first) & (nodes < self.stop), nodes - self.first, -1)


def pieces_of(group: Group, whole: int) -> list[Piece]:
    """The group in one piece, or its one utterance in several if it has more than `whole` nodes."""
    if group.stop - group.first > 1 or group.nodes <= whole:
        return [Piece(0, group.nodes, (0, 1 << 62), 0, group.table)]
    row = group.table[0].tolist()
    step, found = piece_frames(row[FRAMES], row[LABELS], whole), []
    for t in range(0, row[FRAMES], step):
        stop = min(t + step, row[FRAMES])
        table = group.table.clone()
        table[0, START], table[0, FRAMES], table[0, FRAME_BASE] = 0, stop - t, row[FRAME_BASE] + t
        found.append(Piece(t * row[STRIDE], stop * row[STRIDE], (t, stop), row[FRAMES] - stop, table))
    return found


class Edges:
    """Logs of alpha that enter each piece from above, and of beta below the piece that is next on the way back."""

    def __init__(self, problem: Problem, group: Group) -> None:
        width = int(group.table[0, STRIDE])
        self.above, self.below = (problem.lattice.edge(width, problem.device) for _ in range(2))
        self.above[0, 0] = 0.0
        self.rows: list[Tensor] = []

    def forward(self, problem: Problem, piece: Piece, entries: Tensor) -> None:
        self.rows.append(self.above.clone())
        problem.lattice.forward_piece(entries, piece.table, piece.after, self.above)

    @property
    def loss(self) -> Tensor:
        """After the last piece."""
        return -self.above[0, -1]

    def backward(
        self, problem: Problem, piece: Piece, entries: Tensor, loss: Tensor, weight: Tensor, gammas: Tensor
    ) -> None:  # fmt: skip
        """Posteriors of a piece, from the last to the first."""
        above = self.rows.pop()
        problem.lattice.backward_piece(entries, piece.table, piece.after, above, self.below, loss, weight, gammas)
