"""A lattice of which each frame has an interval of nodes, by way of a whole lattice whose other nodes have probability 0."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from samplewise.kernels.eager.lattice import lattice
from samplewise.kernels.layout import FRAMES, LABELS


def band_lattice(
    lp_blank: Tensor, lp_label: Tensor, utterances: Tensor, base: Tensor, low: Tensor, high: Tensor, weights: Tensor,
    losses: Tensor, gamma_blank: Tensor | None, gamma_label: Tensor | None,
) -> None:  # fmt: skip
    """Losses (G,) float64 of the paths inside and, unless None, the arc posteriors times the utterance's weight.

    base, low and high (R,) int64 are those of frames, those of all utterances one after the other: node u of a frame, low <= u
    < high, lies at base + u in lp_blank, lp_label (N,) and in the posteriors, which may be the emissions themselves. Only
    LABELS and FRAMES of the table are read. Without gamma_label, gamma_blank gets the sum of both.
    """
    by_whole(lattice, lp_blank, lp_label, utterances, base, low, high, weights, losses, gamma_blank, gamma_label)


def by_whole(
    lattice: Callable[..., None], lp_blank: Tensor, lp_label: Tensor, utterances: Tensor, base: Tensor, low: Tensor,
    high: Tensor, weights: Tensor, losses: Tensor, gamma_blank: Tensor | None, gamma_label: Tensor | None,
) -> None:  # fmt: skip
    """`band_lattice` by the `lattice` of some backend."""
    device = lp_blank.device
    frames, labels = utterances[:, FRAMES], utterances[:, LABELS]
    width = (labels + 1).repeat_interleave(frames)  # (R,)
    start = width.cumsum(0) - width  # of every frame in the whole lattice
    count = (high - low).clamp(min=0)
    row = torch.arange(len(count), device=device).repeat_interleave(count)
    u = torch.arange(len(row), device=device) - (count.cumsum(0) - count - low)[row]
    here, there = base[row] + u, start[row] + u  # of every node that exists
    blank, label = (torch.full((int(width.sum()),), -math.inf, dtype=lp.dtype, device=device) for lp in (lp_blank, lp_label))
    blank[there], label[there] = lp_blank[here], lp_label[here]
    table = utterances.clone()
    table[:, 0] = (frames * (labels + 1)).cumsum(0) - frames * (labels + 1)
    table[:, 1] = labels + 1
    if gamma_blank is None:
        lattice(blank, label, table, weights, losses, None, None)
        return
    lattice(blank, label, table, weights, losses, blank, None if gamma_label is None else label)
    gamma_blank[here] = blank[there]
    if gamma_label is not None:
        gamma_label[here] = label[there]
