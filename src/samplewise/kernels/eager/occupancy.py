"""Which nodes a tile holds, and which nodes carry the occupancy."""

from __future__ import annotations

import torch
from torch import Tensor

from samplewise.kernels.layout import (
    FRAME_BASE,
    FRAMES,
    LABELS,
    START,
    STRIDE,
    TARGET_BASE,
    TOKEN_BASE,
)


def locate(node: Tensor, utterances: Tensor, targets: Tensor, frame: Tensor, token: Tensor, label: Tensor) -> None:
    """Rows of the encodings, and the next label, of the ascending nodes `node` (R,); all outputs (R,) int64.

    targets is the flat (B U,) tensor of label columns; label is -1 where none is left.
    """
    row = utterances[torch.searchsorted(utterances[:, START].contiguous(), node, right=True) - 1]  # (R, 7)
    at = node - row[:, START]
    t, u = at // row[:, STRIDE], at % row[:, STRIDE]
    torch.add(row[:, FRAME_BASE], t, out=frame)
    torch.add(row[:, TOKEN_BASE], u, out=token)
    left = u < row[:, LABELS]
    if targets.numel() == 0:
        label.fill_(-1)
    else:
        label.copy_(torch.where(left, targets[(row[:, TARGET_BASE] + u).clamp(max=targets.numel() - 1)], -1))


def select(gamma_blank: Tensor, gamma_label: Tensor, utterances: Tensor, losses: Tensor, tolerance: float) -> Tensor:
    """The ascending nodes (A,) int64 that carry all but `tolerance` of each utterance's occupancy, as few as possible.

    tolerance 0 keeps every node of every utterance with a finite loss.
    """
    occupancy = (gamma_blank + gamma_label).abs()
    finite = torch.isfinite(losses)
    keep = torch.zeros_like(occupancy, dtype=torch.bool)
    for g, row in enumerate(utterances.tolist()):
        nodes = slice(row[START], row[START] + row[FRAMES] * row[STRIDE])
        if tolerance <= 0.0:
            keep[nodes] = finite[g]
            continue
        ordered, index = occupancy[nodes].sort()
        dropped = ordered.cumsum(0, dtype=losses.dtype)
        stays = (dropped > tolerance * dropped[-1]) & finite[g]
        keep[nodes] = torch.zeros_like(stays).index_put_((index,), stays)
    return keep.nonzero()[:, 0]
