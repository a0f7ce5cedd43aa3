"""Which nodes a tile holds, and which nodes carry the occupancy."""

from __future__ import annotations

from collections.abc import Iterator

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

AT_ONCE = 1 << 20  # nodes that are sorted together


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
    nowhere = gamma_blank.numel()  # where the padding of a shorter utterance lies
    occupancy = gamma_blank.new_zeros(nowhere + 1)
    torch.add(gamma_blank, gamma_label, out=occupancy[:-1]).abs_()
    keep = torch.zeros_like(occupancy, dtype=torch.bool)
    sizes = utterances[:, FRAMES] * utterances[:, STRIDE]
    for some, most in alike(sizes.tolist()):
        at = torch.arange(most, device=occupancy.device)
        node = torch.where(at < sizes[some, None], utterances[some, START, None] + at, nowhere)  # (g, most nodes)
        stays = torch.isfinite(losses[some, None]).expand_as(node)
        if tolerance > 0.0:
            ordered, order = occupancy[node].sort(1)
            dropped = ordered.cumsum(1, dtype=losses.dtype)
            stays = stays & torch.empty_like(stays).scatter_(1, order, dropped > tolerance * dropped[:, -1:])
        keep[node] = stays
    return keep[:-1].nonzero()[:, 0]


def alike(sizes: list[int]) -> Iterator[tuple[slice, int]]:
    """Consecutive utterances, and the size of the largest of them: as many as take AT_ONCE nodes if all were as large."""
    first, most = 0, 0
    for stop, size in enumerate(sizes):
        if stop > first and max(most, size) * (stop + 1 - first) > AT_ONCE:
            yield slice(first, stop), most
            first, most = stop, 0
        most = max(most, size)
    yield slice(first, len(sizes)), most
