"""Forward and backward variables of some consecutive frames of an utterance that is too long for floats of all its nodes.

As `lattice.py`, along anti-diagonals, but what comes from above and from below is given as logarithms, and so is what goes on.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from samplewise.kernels.eager.lattice import Diagonals


def forward_piece(lp_blank: Tensor, lp_label: Tensor, piece: Tensor, above: Tensor) -> None:
    """Alpha through some consecutive frames of an utterance.

    piece (1, 7) is their table, as if they were an utterance of their own. `above` (U+1,) float64, the log of alpha as it comes
    from the frame above (first of all: 0, -inf, -inf, ...), becomes what goes to the frame below; after the last piece its last
    number is minus the loss.
    """
    leaving = torch.empty_like(above)
    _alphas(Diagonals(lp_blank, lp_label, piece, above.dtype), above, leaving)
    above.copy_(leaving)


def backward_piece(
    lp_blank: Tensor, lp_label: Tensor, piece: Tensor, above: Tensor, below: Tensor, loss: float | Tensor,
    weight: float | Tensor, gamma_blank: Tensor, gamma_label: Tensor | None,
) -> None:  # fmt: skip
    """The arc posteriors, as by `lattice`, of some consecutive frames of an utterance whose loss is known.

    `above` (U+1,) float64 is what `forward_piece` was given, `below` (U+1,) float64 the log of beta of the frame below (last of
    all: -inf, ..., -inf, 0), which becomes that of the first frame here (if the loss is finite and the weight not 0).
    """
    diagonals = Diagonals(lp_blank, lp_label, piece, above.dtype)
    alphas = _alphas(diagonals, above, torch.empty_like(above))
    loss, weight = (torch.as_tensor(x, dtype=above.dtype, device=above.device) for x in (loss, weight))
    factor = torch.where(torch.isfinite(loss), weight, 0.0)
    beta, first = torch.full_like(alphas[0], -math.inf), torch.empty_like(below)
    for d in range(diagonals.steps - 1, -1, -1):
        blank, label = diagonals.at(d)
        u, node = diagonals.place(d)
        last = d - diagonals.u == diagonals.frames - 1
        by_blank = blank + torch.where(last, below, beta)
        by_label = label + torch.nn.functional.pad(beta[:, 1:], (0, 1), value=-math.inf)
        beta = torch.logaddexp(by_blank, by_label)
        if d < first.numel():
            first[d] = beta[0, d]
        shares = [torch.exp((alphas[d] + by + loss).clamp(max=0.0)) * factor for by in (by_blank, by_label)]
        shares = [torch.where(factor == 0, 0.0, share).gather(1, u) for share in shares]
        if gamma_label is None:
            gamma_blank[node] = (shares[0] + shares[1]).to(gamma_blank.dtype)
            continue
        for out, share in zip((gamma_blank, gamma_label), shares, strict=True):
            out[node] = share.to(out.dtype)
    below.copy_(first)


def _alphas(diagonals: Diagonals, above: Tensor, leaving: Tensor) -> list[Tensor]:
    """Alpha by diagonal, each (1, U+1); what goes to the frame below into `leaving` (U+1,)."""
    alpha = torch.full((1, above.numel()), -math.inf, dtype=above.dtype, device=above.device)
    alphas = []
    for d in range(diagonals.steps):
        if d < above.numel():
            alpha[0, d] = torch.logaddexp(alpha[0, d], above[d])
        alphas.append(alpha)
        blank, label = diagonals.at(d)
        stay, end = alpha + blank, d + 1 - int(diagonals.frames)
        if 0 <= end < above.numel():
            leaving[end] = stay[0, end]
        alpha = torch.logaddexp(stay, torch.nn.functional.pad((alpha + label)[:, :-1], (1, 0), value=-math.inf))
    return alphas
